"""What the ranks that share a step exchange: the outputs of branches, and the parts of tensors (workers/ulysses.py).

Before any tensor moves each rank says what it has made, or why it has nothing: what fails on one of them fails the step
on all alike. Words go by mailbox (workers/peers.py), tensors by torch.distributed, NCCL on GPUs and gloo elsewhere.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from socket import if_nameindex
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from cards import codec
from cards.branches import Branches, in_order
from cards.forward import Outputs
from cards.parallel import CFG, ULYSSES, ParallelPlan
from cards.ulysses import Ranks
from cards.wire import StepError
from workers.errors import BranchFailed, ExchangeBroken, step_error
from workers.peers import Peers

if TYPE_CHECKING:
    from torch import Tensor

SOONER = 0.8
"""Of the time that a rank waits for a word: so whoever has lost another can still say so to those that wait for it."""


STARTING_S = 60.0
"""How long a process may take more than another to start."""


class Layout(Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Said(Struct, frozen=True):
    """What a rank's branches have made, or the error of the first that failed."""

    made: dict[str, dict[str, Layout]] = {}
    error: StepError | None = None


class Opened(Struct, frozen=True):
    """What steps are shared with: their branches, and the tokens of their forwards.

    `branches` is there whatever is shared: by it a step is known to be run by several ranks, one after the other.
    """

    branches: Branches | None = None
    ranks: Ranks | None = None


@contextmanager
def opened(plan: ParallelPlan, peers: Peers, store: Path, device: str) -> Iterator[Opened]:
    """Meets the other ranks at a file. Raises ExchangeBroken."""
    import torch
    from torch import distributed

    from workers.ulysses import Ulysses

    os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback())
    on_gpu, everyone = device != "cpu", tuple(range(plan.ranks))
    peers.meet(max(peers.timeout_s, STARTING_S))
    with _meeting(peers, everyone):
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
            store=distributed.FileStore(str(store), plan.ranks),  # type: ignore[attr-defined]
            rank=peers.rank,
            world_size=plan.ranks,
            timeout=timedelta(seconds=peers.timeout_s),
            device_id=torch.device(device) if on_gpu else None,
        )
    try:
        with _meeting(peers, everyone):
            halves = _group(plan, plan.halves, peers, device)
            neighbours = _group(plan, plan.neighbours, peers, device)
        yield Opened(
            Exchange(halves, everyone) if plan.degree(CFG) > 1 else in_order,
            Ulysses(neighbours) if plan.degree(ULYSSES) > 1 else None,
        )
    finally:
        distributed.destroy_process_group()


def _group(plan: ParallelPlan, members: Callable[[int], tuple[int, ...]], peers: Peers, device: str) -> "Group":
    """That of this rank. All ranks make all groups, in one order."""
    from torch import distributed

    of_ranks = sorted({members(rank) for rank in range(plan.ranks)})
    timeout = timedelta(seconds=peers.timeout_s * SOONER)
    made = {ranks: distributed.new_group(ranks, timeout) for ranks in of_ranks if len(ranks) > 1}
    mine = members(peers.rank)
    return Group(mine, peers, made.get(mine), device)


class Group:
    """Ranks that share something, one of which is this. `group` is torch's, of the same ranks."""

    def __init__(self, ranks: tuple[int, ...], peers: Peers, group: Any, device: str) -> None:
        self.ranks = ranks
        self.peers = peers
        self.device = device
        self._group = group

    @property
    def place(self) -> int:
        return self.ranks.index(self.peers.rank)

    def agree(self, error: Exception | None = None) -> None:
        """Raises BranchFailed, on all of them alike, if one says an error, and ExchangeBroken."""
        say(self.peers, self.ranks, Said() if error is None else _failed(self.peers, error))

    def broadcast(self, flat: "Tensor", place: int) -> None:
        """From the rank at that place to the others. Raises ExchangeBroken."""
        from torch import distributed

        with self._exchanging():
            distributed.broadcast(flat, src=self.ranks[place], group=self._group)

    def all_to_all(self, sent: "Tensor", gives: list[int], takes: list[int]) -> "Tensor":
        """So many of the bytes to each rank, in order, and so many from each. Raises ExchangeBroken.

        Where there is no memory for what comes, nothing is exchanged.
        """
        import torch
        from torch import distributed

        taken = torch.empty(sum(takes), dtype=torch.uint8, device=sent.device)
        with self._exchanging():
            distributed.all_to_all_single(taken, sent, takes, gives, group=self._group)
        return taken

    @contextmanager
    def _exchanging(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # torch.distributed has no other for a peer that is gone or late
            self.peers.end("it has lost another rank", self.ranks)
            others = [rank for rank in self.ranks if rank != self.peers.rank]
            missing = self.peers.missing(others, self.peers.timeout_s * (1 - SOONER) / 2) or others
            within_s = self.peers.timeout_s * SOONER
            problem = f"gone, or exchanged no tensors for {within_s:g} s: {_first_line(error)}"
            raise ExchangeBroken(missing, problem) from error


class Exchange:
    """Shares the branches of a step: each half of the ranks evaluates its own. It is a `cards.branches.Branches`."""

    def __init__(self, halves: Group, everyone: tuple[int, ...]) -> None:
        self._halves = halves
        self._everyone = everyone

    def __call__(self, forwards: Mapping[str, Callable[[], Outputs]]) -> dict[str, Outputs]:
        """Raises BranchFailed, and ExchangeBroken, after which there is no pool."""
        halves = self._halves
        if len(forwards) < len(halves.ranks):
            return in_order(forwards)
        made, said = self._evaluate({branch: forwards[branch] for branch in share([*forwards], halves.place)})
        everyone = say(halves.peers, self._everyone, said)
        for place, rank in enumerate(halves.ranks):
            layouts = everyone[self._everyone.index(rank)].made
            made |= {branch: self._passed(place, outputs, made.get(branch)) for branch, outputs in layouts.items()}
        return {branch: made[branch] for branch in forwards}

    def _evaluate(self, mine: Mapping[str, Callable[[], Outputs]]) -> tuple[dict[str, Outputs], Said]:
        try:
            made = {branch: _sendable(forward()) for branch, forward in mine.items()}
        except ExchangeBroken:
            raise
        except Exception as error:  # noqa: BLE001 - a step's own, which the other ranks wait to hear of
            return {}, _failed(self._halves.peers, error)
        layouts = {
            branch: {name: _layout(tensor) for name, tensor in outputs.items()} for branch, outputs in made.items()
        }
        return made, Said(layouts)

    def _passed(self, place: int, layouts: Mapping[str, Layout], outputs: "Outputs | None") -> Outputs:
        """The outputs of a branch, from the rank that has them to the others."""
        return {
            name: self._pass(place, layout, None if outputs is None else outputs[name])
            for name, layout in layouts.items()
        }

    def _pass(self, place: int, layout: Layout, tensor: "Tensor | None") -> "Tensor":
        import torch

        dtype: torch.dtype = getattr(torch, layout.dtype)
        if tensor is not None:
            self._halves.broadcast(tensor.contiguous().reshape(-1).view(torch.uint8), place)
            return tensor
        device = self._halves.device
        dense = torch.empty(layout.shape, dtype=dtype, device=device)
        self._halves.broadcast(dense.reshape(-1).view(torch.uint8), place)
        return torch.empty_strided(layout.shape, layout.strides, dtype=dtype, device=device).copy_(dense)


def say(peers: Peers, among: tuple[int, ...], said: Said) -> list[Said]:
    """What each of these ranks says. Raises BranchFailed for the first that failed, and ExchangeBroken."""
    came = peers.round(among, msgspec.msgpack.encode(said))
    everyone = [msgspec.msgpack.decode(data, type=Said) for data in came]
    if failed := next((one.error for one in everyone if one.error is not None), None):
        raise BranchFailed(failed)
    return everyone


def _failed(peers: Peers, error: Exception) -> Said:
    """With the rank that it happened on, which is not this one for what others have said before."""
    failed = step_error(error)
    if not isinstance(error, BranchFailed):
        failed = StepError(failed.kind, f"{failed.message} (rank {peers.rank})")
    return Said(error=failed)


def share(branches: Sequence[str], half: int) -> Sequence[str]:
    """The branches of a half. Of three the first is the one that costs as much as the others together (LTX-2)."""
    middle = len(branches) // 2
    return branches[middle:] if half else branches[:middle]


def _sendable(outputs: Outputs) -> Outputs:
    """Laid out as the other rank can lay them out too."""
    return {
        name: tensor if codec.each_its_own(tensor.shape, tensor.stride()) else tensor.contiguous()
        for name, tensor in outputs.items()
    }


def _layout(tensor: "Tensor") -> Layout:
    return Layout(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tuple(tensor.stride()))


def _loopback() -> str:
    """The ranks of a pool are on one machine, and nobody else is to reach them."""
    return next(name for _, name in if_nameindex() if name.startswith("lo"))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


@contextmanager
def _meeting(peers: Peers, ranks: Sequence[int]) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        others = [rank for rank in ranks if rank != peers.rank]
        raise ExchangeBroken(others, f"not met the others in {peers.timeout_s:g} s: {_first_line(error)}") from error
