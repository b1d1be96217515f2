"""The branches of a step shared out among the ranks of a pool: each evaluates its own and they exchange the outputs.

Before anything is sent each rank says what it has made, or why it has nothing: a branch that fails fails the step on
all ranks alike. A rank that says nothing in time, or is gone, ends the pool.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from socket import if_nameindex
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from cards import codec
from cards.branches import in_order
from cards.forward import Outputs
from cards.wire import StepError
from workers.errors import BranchFailed, ExchangeBroken
from workers.execute import step_error

if TYPE_CHECKING:
    from torch import Tensor

RANKS = 2
"""That share branches: guidance has two, or three of which one costs as much as the others."""

SAID_BYTES = 8192
MOST_MESSAGE = 1000
"""Characters of an error that reach the other rank: what is said has to fit, in any script."""


class Layout(Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Said(Struct, frozen=True):
    """What a rank's branches have made, or the error of the first that failed."""

    made: dict[str, dict[str, Layout]] = {}
    error: StepError | None = None


@contextmanager
def opened(store: Path, rank: int, device: str, timeout_s: float) -> Iterator["Exchange"]:
    """Meets the other rank at a file. Raises ExchangeBroken."""
    import os

    import torch
    from torch import distributed

    os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback())
    on_gpu = device != "cpu"
    with _watched(1 - rank, timeout_s):
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
            store=distributed.FileStore(str(store), RANKS),  # type: ignore[attr-defined]
            rank=rank,
            world_size=RANKS,
            timeout=timedelta(seconds=timeout_s),
            device_id=torch.device(device) if on_gpu else None,
        )
    try:
        yield Exchange(rank, device, timeout_s)
    finally:
        distributed.destroy_process_group()


class Exchange:
    """One rank's side, of the group that `opened` has made. It is a `cards.branches.Branches`."""

    def __init__(self, rank: int, device: str, timeout_s: float) -> None:
        self._rank = rank
        self._device = device
        self._timeout_s = timeout_s

    def __call__(self, forwards: Mapping[str, Callable[[], Outputs]]) -> dict[str, Outputs]:
        """Raises BranchFailed, and ExchangeBroken, after which there is no pool."""
        if len(forwards) < RANKS:
            return in_order(forwards)
        made, said = self._evaluate({branch: forwards[branch] for branch in share([*forwards], self._rank)})
        everyone = self._tell(said)
        if failed := next((one.error for one in everyone if one.error is not None), None):
            raise BranchFailed(failed)
        with _watched(1 - self._rank, self._timeout_s):
            for rank, one in enumerate(everyone):
                made |= {branch: self._passed(rank, layouts, made.get(branch)) for branch, layouts in one.made.items()}
        return {branch: made[branch] for branch in forwards}

    def _evaluate(self, mine: Mapping[str, Callable[[], Outputs]]) -> tuple[dict[str, Outputs], Said]:
        try:
            made = {branch: _sendable(forward()) for branch, forward in mine.items()}
        except Exception as error:  # noqa: BLE001 - a step's own, which the other rank waits to hear of
            failed = step_error(error)
            return {}, Said(error=StepError(failed.kind, failed.message[:MOST_MESSAGE]))
        layouts = {
            branch: {name: _layout(tensor) for name, tensor in outputs.items()} for branch, outputs in made.items()
        }
        return made, Said(layouts)

    def _tell(self, said: Said) -> list[Said]:
        """What each rank says, in rank order. It goes through host memory, whatever the device."""
        import torch
        from torch import distributed

        data = msgspec.msgpack.encode(said)
        assert len(data) + 4 <= SAID_BYTES, "a step has a few branches, and each a few outputs"
        mine = torch.zeros(SAID_BYTES, dtype=torch.uint8)
        mine[: len(data) + 4] = torch.frombuffer(bytearray(len(data).to_bytes(4, "little") + data), dtype=torch.uint8)
        everyone = [torch.empty_like(mine) for _ in range(RANKS)]
        with _watched(1 - self._rank, self._timeout_s):
            distributed.all_gather(everyone, mine)
        return [_said(one.numpy().tobytes()) for one in everyone]

    def _passed(self, rank: int, layouts: Mapping[str, Layout], outputs: "Outputs | None") -> Outputs:
        """The outputs of a branch, from the rank that has them to the others."""
        return {
            name: self._pass(rank, layout, None if outputs is None else outputs[name])
            for name, layout in layouts.items()
        }

    def _pass(self, rank: int, layout: Layout, tensor: "Tensor | None") -> "Tensor":
        import torch
        from torch import distributed

        dtype: torch.dtype = getattr(torch, layout.dtype)
        if tensor is not None:
            distributed.broadcast(tensor.contiguous().reshape(-1).view(torch.uint8), src=rank)
            return tensor
        dense = torch.empty(layout.shape, dtype=dtype, device=self._device)
        distributed.broadcast(dense.reshape(-1).view(torch.uint8), src=rank)
        return torch.empty_strided(layout.shape, layout.strides, dtype=dtype, device=self._device).copy_(dense)


def share(branches: Sequence[str], rank: int) -> Sequence[str]:
    """The branches of a rank. Of three the first is the one that costs as much as the others together (LTX-2)."""
    half = len(branches) // 2
    return branches[half:] if rank else branches[:half]


def _sendable(outputs: Outputs) -> Outputs:
    """Laid out as the other rank can lay them out too."""
    return {
        name: tensor if codec.each_its_own(tensor.shape, tensor.stride()) else tensor.contiguous()
        for name, tensor in outputs.items()
    }


def _layout(tensor: "Tensor") -> Layout:
    return Layout(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tuple(tensor.stride()))


def _said(data: bytes) -> Said:
    length = int.from_bytes(data[:4], "little")
    return msgspec.msgpack.decode(data[4 : 4 + length], type=Said)


def _loopback() -> str:
    """The ranks of a pool are on one machine, and nobody else is to reach them."""
    return next(name for _, name in if_nameindex() if name.startswith("lo"))


@contextmanager
def _watched(other: int, timeout_s: float) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # torch.distributed has no other for a peer that is gone or late
        raise ExchangeBroken(other, timeout_s, str(error)) from error
