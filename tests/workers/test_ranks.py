"""The ranks of one pool, over real sockets: they agree, or the pool ends and says who did not."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import zmq
from msgspec.structs import replace

from cards import wire
from cards.family import Made
from cards.wire import Batch, Introduce, Release, Shutdown, StepError
from tests.workers.units import CountingBlobs, executor, sent, unit
from workers.errors import ExchangeBroken, RanksDiverged, RankSilent, RanksUnlike
from workers.execute import Answer, Executor
from workers.peers import Peers, joined
from workers.ranks import Followers, follow, summary
from workers.resident import Held

PATIENCE_S = 30.0


def double(reads: Mapping[str, torch.Tensor]) -> Made:
    return Made({"y": reads["x"] * 2}, {"sum": float(reads["x"].sum())})


def triple(reads: Mapping[str, torch.Tensor]) -> Made:
    return Made({"y": reads["x"] * 3}, {"sum": float(reads["x"].sum())})


REFS, FRAMES = sent(x=torch.arange(4.0))
UNIT = unit(REFS, inline=(REFS["x"].digest,))


@contextmanager
def pool(
    others: Sequence[Executor],
    *,
    silent: int = 0,
    timeout_s: float = PATIENCE_S,
    peers: Sequence[Peers | None] = (),
    heard: Callable[[Any], Any] = lambda socket: socket,
) -> Iterator[Followers]:
    """Rank 0's side of ranks that run `others`, and of `silent` more that never say a word."""
    mine, *theirs_to_others = peers or [None] * (len(others) + 1)
    with zmq.Context() as context:
        sockets, threads = [], []
        for rank in range(len(others) + silent):
            ours, theirs = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
            ours.bind(f"inproc://{rank}")
            theirs.connect(f"inproc://{rank}")
            sockets += [ours, theirs]
            if rank < len(others):
                of_rank = (heard(theirs), others[rank], "", theirs_to_others[rank])
                threads.append(threading.Thread(target=follow, args=of_rank))
                threads[-1].start()
        followers = Followers(sockets[::2], timeout_s, mine)
        try:
            yield followers
        finally:
            followers.broadcast(Shutdown())
            for thread in threads:
                thread.join(PATIENCE_S)
                assert not thread.is_alive(), "a rank that is told to stop stops"
            for socket in sockets:
                socket.close(0)


def test_ranks_that_make_the_same_agree() -> None:
    first, others = executor(double), [executor(double, stores=False) for _ in range(2)]
    with pool(others) as followers:
        followers.ready()
        for _ in range(3):
            followers.broadcast(UNIT, FRAMES)
            followers.agree(first.run(UNIT, FRAMES))

        assert [other.resident.held() for other in others] == [first.resident.held()] * 2


@pytest.mark.parametrize("differs", [None, "b"])
def test_each_unit_of_a_batch_is_agreed_on(differs: str | None) -> None:
    members = [unit(REFS, job=job, inline=(REFS["x"].digest,)) for job in "abc"]
    others = {job: triple if job == differs else double for job in "abc"}
    batch = Batch(tuple(members))

    class Other(Executor):
        def run_batch(self, batch: Batch, frames: Sequence[bytes]) -> list[Answer]:
            return [executor(others[one.id.job]).run(one, list(FRAMES)) for one in batch.units]

    with pool([Other({}, CountingBlobs())]) as followers:
        followers.ready()
        followers.broadcast(batch, FRAMES * 3)
        first, second, third = executor(double).run_batch(batch, FRAMES * 3)
        followers.agree(first)
        if differs is None:
            followers.agree(second)
            followers.agree(third)
            return
        with pytest.raises(RanksDiverged):
            followers.agree(second)


def test_another_rank_executes_a_batch_as_rank_zero_does() -> None:
    batch = Batch(tuple(unit(REFS, job=job, inline=(REFS["x"].digest,)) for job in "abc"))
    first, other = executor(double), executor(double, stores=False)
    with pool([other]) as followers:
        followers.ready()
        followers.broadcast(batch, FRAMES * 3)
        for answer in first.run_batch(batch, FRAMES * 3):
            assert answer.result.error is None
            followers.agree(answer)

    assert other.resident.held() == first.resident.held()


def test_ranks_that_fail_alike_agree() -> None:
    first, lost = executor(double), replace(UNIT, inline=())
    with pool([executor(double)]) as followers:
        followers.ready()
        followers.broadcast(lost)
        answer = first.run(lost, [])
        followers.agree(answer)

    assert answer.result.error is not None


def no_memory(reads: Mapping[str, torch.Tensor]) -> Made:
    raise MemoryError(f"{object()} does not fit")


def no_number(reads: Mapping[str, torch.Tensor]) -> Made:
    return Made({"y": reads["x"] / 0})


@pytest.mark.parametrize(("body", "kind"), [(no_memory, "oom"), (no_number, "nan")])
def test_ranks_that_fail_alike_agree_whatever_words_each_has_for_it(body: Any, kind: str) -> None:
    with pool([executor(body)]) as followers:
        followers.ready()
        followers.broadcast(UNIT, FRAMES)
        answer = executor(body).run(UNIT, FRAMES)
        followers.agree(answer)

    assert answer.result.error is not None
    assert answer.result.error.kind == kind


@pytest.mark.parametrize("rank", [1, 2])
def test_the_rank_that_made_something_else_is_named(rank: int) -> None:
    others = [executor(triple if n == rank else double) for n in (1, 2)]
    with pool(others) as followers:
        followers.ready()
        followers.broadcast(UNIT, FRAMES)
        with pytest.raises(RanksDiverged, match=f"rank {rank} made") as caught:
            followers.agree(executor(double).run(UNIT, FRAMES))

    assert caught.value.rank == rank


def test_a_rank_that_does_not_load_is_named() -> None:
    with (
        pool([executor(double)], silent=1, timeout_s=0.3) as followers,
        pytest.raises(RankSilent, match=r"rank 2 has not answered for 0\.3 s") as caught,
    ):
        followers.ready()

    assert caught.value.ranks == [2]


def test_a_rank_that_computes_with_something_else_is_named() -> None:
    with (
        pool([executor(double)]) as followers,
        pytest.raises(RanksUnlike, match=r"rank 1 computes with .* where rank 0 computes with device=NVIDIA_H200"),
    ):
        followers.ready("device=NVIDIA_H200")


def test_a_rank_that_does_not_answer_is_named() -> None:
    with pool([], silent=1, timeout_s=0.05) as followers:
        followers.broadcast(UNIT, FRAMES)
        with pytest.raises(RankSilent) as caught:
            followers.agree(executor(double).run(UNIT, FRAMES))

    assert caught.value.ranks == [1]


@pytest.mark.parametrize("command", [Release("j", 1), Introduce()])
def test_what_rank_zero_forgets_the_others_forget(command: Release | Introduce) -> None:
    other = executor(double)
    with pool([other]) as followers:
        followers.ready()
        followers.broadcast(UNIT, FRAMES)
        followers.agree(executor(double).run(UNIT, FRAMES))
        assert other.resident.held().tensors == 2
        followers.broadcast(command)

    assert other.resident.held() == Held(0, 0)


def test_one_rank_alone_agrees_with_itself() -> None:
    followers = Followers([], 0.0)

    followers.ready()
    followers.broadcast(UNIT, FRAMES)
    followers.agree(executor(double).run(UNIT, FRAMES))


def test_ranks_compare_what_was_made_and_nothing_of_when() -> None:
    answer = executor(double).run(UNIT, FRAMES)

    later = Answer(replace(answer.result, seconds=9.0, inline=()))
    assert summary(later) == summary(answer)


@pytest.mark.parametrize(
    "change",
    [
        {"tensors": {}},
        {"scalars": {"sum": 7.0}},
        {"error": StepError("error", "m")},
        {"id": replace(UNIT.id, version=2)},
    ],
)
def test_any_other_thing_made_is_seen(change: dict[str, object]) -> None:
    answer = executor(double).run(UNIT, FRAMES)

    assert summary(Answer(replace(answer.result, **change))) != summary(answer)


def fails(reads: Mapping[str, torch.Tensor]) -> Made:
    raise ValueError("it does not load here")


def test_a_rank_that_fails_in_another_way_is_named_with_its_error() -> None:
    with pool([executor(no_memory)]) as followers:
        followers.ready()
        followers.broadcast(UNIT, FRAMES)
        with pytest.raises(RanksDiverged, match=r"rank 1 failed with MemoryError: .* rank 0 failed with ValueError"):
            followers.agree(executor(fails).run(UNIT, FRAMES))


def test_a_rank_that_fails_where_the_others_do_not_is_named_with_its_error() -> None:
    with pool([executor(double), executor(fails)]) as followers:
        followers.ready()
        followers.broadcast(UNIT, FRAMES)
        with pytest.raises(
            RanksDiverged, match="rank 2 failed with ValueError: it does not load here where rank 0 made"
        ):
            followers.agree(executor(double).run(UNIT, FRAMES))


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_waits_for_another_to_share_a_step_hears_at_once_that_it_has_failed(
    tmp_path: Path, failing: int
) -> None:
    def waits(peers: Peers) -> Any:
        return lambda reads: Made({"y": torch.tensor([len(peers.round((0, 1), b""))])})

    with joined(tmp_path, 0, 2, PATIENCE_S) as mine, joined(tmp_path, 1, 2, PATIENCE_S) as theirs:
        bodies = [waits(mine), waits(theirs)]
        bodies[failing] = fails
        with pool([executor(bodies[1])], peers=(mine, theirs)) as followers:
            followers.ready()
            followers.broadcast(UNIT, FRAMES)
            with pytest.raises(ExchangeBroken, match="ValueError: it does not load here") as caught:
                followers.agree(executor(bodies[0]).run(UNIT, FRAMES))

    assert caught.value.ranks == [1]


class Hearing:
    """What a rank hears, but for a release, which comes after the next command, or never."""

    def __init__(self, socket: Any, *, at_all: bool) -> None:
        self.send = socket.send
        self._socket = socket
        self._at_all = at_all
        self._late: list[list[bytes]] = []

    def recv_multipart(self) -> list[bytes]:
        if self._late:
            return self._late.pop()
        parts: list[bytes] = self._socket.recv_multipart()
        if not isinstance(wire.decode_engine_message(parts[0]), Release):
            return parts
        following: list[bytes] = self._socket.recv_multipart()
        self._late = [parts] if self._at_all else []
        return following


@pytest.mark.parametrize("at_all", [False, True], ids=["never", "later"])
def test_a_rank_that_hears_of_an_abort_elsewhere_in_the_order_is_named_though_it_made_the_same(at_all: bool) -> None:
    first, another = executor(double), replace(UNIT, id=replace(UNIT.id, job="another"))
    with pool([executor(double)], heard=partial(Hearing, at_all=at_all)) as followers:
        followers.ready()
        followers.broadcast(UNIT, FRAMES)
        followers.agree(first.run(UNIT, FRAMES))
        followers.broadcast(Release("j", 1))
        followers.broadcast(another, FRAMES)
        with pytest.raises(RanksDiverged, match=r"rank 1 was told other commands, or in another order, .* rank 0 was"):
            followers.agree(first.run(another, FRAMES))
