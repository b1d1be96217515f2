"""A worker's link on a real wire: what the engine hears, and when."""

import functools
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import pytest
import torch
import zmq
from msgspec import Struct
from msgspec.structs import replace

from cards.family import Made
from cards.wire import (
    Batch,
    Goodbye,
    Heartbeat,
    Hello,
    Introduce,
    ModelIdentity,
    Release,
    Released,
    Shutdown,
    StepResult,
    UnitId,
    WorkerMessage,
    WorkUnit,
    inline_of,
)
from engine.link import Arrived, ZmqLink, listen
from tests.workers.units import CountingBlobs, executor, sent, unit
from workers.execute import Executor
from workers.link import Command, Identity, Inbox, Link
from workers.ranks import Followers

PATIENCE_S = 30.0
ME = Identity(
    worker="w",
    pool="p",
    ranks=1,
    credits=4,
    memory_bytes=1 << 20,
    models=(ModelIdentity("toy", "c", "w"),),
    fingerprint="f",
)
REFS, FRAMES = sent(x=torch.arange(4.0))
Message = TypeVar("Message", bound=WorkerMessage)


class PowerCut(BaseException):
    pass


class Steps:
    """A step that says when it has begun, and ends when the gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.begun = threading.Semaphore(0)
        self.ended = threading.Semaphore(0)
        self.error: BaseException | None = None

    def __call__(self, reads: Mapping[str, torch.Tensor]) -> Made:
        self.begun.release()
        assert self.gate.wait(PATIENCE_S)
        self.ended.release()
        if self.error is not None:
            raise self.error
        return Made({"y": reads["x"] * 2})


class Worker(Struct):
    link: Link
    steps: Steps
    executor: Executor
    ended: anyio.Event
    reason: str = ""


@asynccontextmanager
async def worker(
    address: str, *, blobs: CountingBlobs | None = None, runs: Executor | None = None, **of_link: Any
) -> AsyncIterator[Worker]:
    """A link in a thread of its own, for as long as it is entered."""
    steps = Steps()
    runs = runs or executor(steps, blobs)
    link = Link(address, ME, runs, Followers([], 0.0), **{"heartbeat_s": 0.02} | of_link)
    there = Worker(link, steps, runs, anyio.Event())

    async def run() -> None:
        there.reason = await anyio.to_thread.run_sync(link.run)
        there.ended.set()

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            try:
                yield there
            finally:
                steps.gate.set()
                link.stop()


async def hear(engine: ZmqLink, kind: type[Message]) -> Arrived:
    """The next message of a kind."""
    while True:
        arrived = await engine.receive()
        if isinstance(arrived.message, kind):
            return arrived


async def hear_but_beats(engine: ZmqLink, count: int) -> list[WorkerMessage]:
    """The next messages that are no heartbeats."""
    heard: list[WorkerMessage] = []
    while len(heard) < count:
        message = (await engine.receive()).message
        if not isinstance(message, Heartbeat):
            heard.append(message)
    return heard


async def hear_queued(engine: ZmqLink, count: int) -> None:
    """Wait for a beat that tells of so many units waiting."""
    while (await hear(engine, Heartbeat)).message.queued != count:  # type: ignore[union-attr]
        pass


async def begun(steps: Steps) -> None:
    await anyio.to_thread.run_sync(functools.partial(steps.begun.acquire, timeout=PATIENCE_S))


async def answers_but_to_gone(engine: ZmqLink, there: Worker, *waiting: WorkUnit | Batch) -> list[WorkerMessage]:
    """What a worker says that has these behind a step which runs, once it is told that the job `gone` is released."""
    await engine.receive()
    await engine.send("w", asked("running"), FRAMES)
    for message in waiting:
        await engine.send("w", message, FRAMES * len(inline_of(message)))
    await begun(there.steps)
    await hear_queued(engine, sum(len(inline_of(message)) for message in waiting))
    await engine.send("w", Release("gone", 1))
    await hear_queued(engine, 2)
    there.steps.gate.set()
    return await hear_but_beats(engine, 4)


def asked(job: str, epoch: int = 1) -> WorkUnit:
    wanted = unit(REFS, job=job, inline=(REFS["x"].digest,))
    return replace(wanted, id=UnitId(job, epoch, 1, 1))


async def test_a_worker_says_who_it_is_and_then_what_it_made() -> None:
    async with listen() as engine, worker(engine.address) as there:
        first = await engine.receive()
        there.steps.gate.set()
        assert await engine.send("w", asked("j"), FRAMES)
        result = await hear(engine, StepResult)

    assert first.worker == "w"
    assert isinstance(first.message, Hello)
    assert (first.message.worker, first.message.credits, first.message.models) == ("w", 4, ME.models)
    assert isinstance(result.message, StepResult)
    assert result.message.id == asked("j").id
    assert result.message.tensors.keys() == {"y"}
    assert len(result.frames) == len(result.message.inline) == 1


async def test_a_worker_joins_without_waiting_for_its_next_heartbeat() -> None:
    async with listen() as engine, worker(engine.address, heartbeat_s=3600.0):
        assert isinstance((await engine.receive()).message, Hello)


async def test_heartbeats_pass_while_a_step_runs() -> None:
    async with listen() as engine, worker(engine.address) as there:
        await engine.receive()
        await engine.send("w", asked("j"), FRAMES)
        await begun(there.steps)
        beats = [(await engine.receive()).message for _ in range(5)]

    assert all(isinstance(beat, Heartbeat) for beat in beats)
    assert beats[-1] == Heartbeat(0, 1, REFS["x"].nbytes, sent=0, received=1, running=(asked("j").id,))


async def test_a_heartbeat_counts_what_was_said_since_the_worker_introduced_itself() -> None:
    async with listen() as engine, worker(engine.address) as there:
        there.steps.gate.set()
        await engine.receive()
        await engine.send("w", asked("j"), FRAMES)
        await hear(engine, StepResult)
        before = (await hear(engine, Heartbeat)).message
        await engine.send("w", Introduce())
        await hear(engine, Hello)
        after = (await hear(engine, Heartbeat)).message

    assert before == Heartbeat(0, 2, before.resident_bytes, sent=1, received=1)  # type: ignore[union-attr]
    assert after == Heartbeat(0, 0, 0, sent=0, received=0)


async def test_a_release_overtakes_the_units_that_it_makes_pointless() -> None:
    waiting = asked("gone"), asked("gone", epoch=2), asked("other"), asked("gone")
    async with listen() as engine, worker(engine.address) as there:
        heard = await answers_but_to_gone(engine, there, *waiting)

    assert [getattr(message, "id", message) for message in heard] == [
        asked("running").id,
        Released("gone", 1, dropped=(asked("gone").id,) * 2),
        asked("gone", epoch=2).id,
        asked("other").id,
    ]


async def test_each_unit_of_a_batch_is_answered_by_itself_and_a_release_takes_one_out() -> None:
    batch = Batch((asked("a"), asked("gone"), asked("b")))
    async with listen() as engine, worker(engine.address) as there:
        heard = await answers_but_to_gone(engine, there, batch)

    assert [getattr(message, "id", message) for message in heard] == [
        asked("running").id,
        Released("gone", 1, dropped=(asked("gone").id,)),
        asked("a").id,
        asked("b").id,
    ]
    assert [message.error for message in heard if isinstance(message, StepResult)] == [None] * 3


async def test_a_release_of_a_job_gives_its_memory_back() -> None:
    async with listen() as engine, worker(engine.address) as there:
        there.steps.gate.set()
        await engine.receive()
        await engine.send("w", asked("j"), FRAMES)
        await hear(engine, StepResult)
        await engine.send("w", Release("j", 1))
        await hear(engine, Released)
        beat = (await hear(engine, Heartbeat)).message

    assert isinstance(beat, Heartbeat)
    assert (beat.resident_tensors, beat.resident_bytes) == (0, 0)


async def test_a_stranger_drops_all_it_holds_and_introduces_itself() -> None:
    async with listen() as engine, worker(engine.address) as there:
        await engine.receive()
        for job in ("running", "waiting", "waiting too"):
            await engine.send("w", asked(job), FRAMES)
        await begun(there.steps)
        await hear_queued(engine, 2)
        await engine.send("w", Introduce())
        await hear_queued(engine, 0)
        there.steps.gate.set()
        result, hello = await hear_but_beats(engine, 2)
        held = there.executor.resident.held().tensors
        await engine.send("w", asked("next"), FRAMES)
        [after] = await hear_but_beats(engine, 1)

    assert isinstance(result, StepResult)
    assert result.id.job == "running"
    assert isinstance(hello, Hello)
    assert held == 0
    assert isinstance(after, StepResult)
    assert after.id.job == "next"


@pytest.mark.parametrize("by", ["the engine", "a signal"])
async def test_a_worker_that_is_told_to_stop_ends_its_step_first(by: str) -> None:
    async with listen() as engine, worker(engine.address) as there:
        await engine.receive()
        for job in ("running", "waiting"):
            await engine.send("w", asked(job), FRAMES)
        await begun(there.steps)
        await hear_queued(engine, 1)
        if by == "the engine":
            await engine.send("w", Shutdown())
        else:
            there.link.stop()
        await hear_queued(engine, 0)
        there.steps.gate.set()
        result, goodbye = await hear_but_beats(engine, 2)
        await there.ended.wait()

    assert isinstance(result, StepResult)
    assert result.error is None
    assert goodbye == Goodbye("told to stop", clean=True)
    assert there.reason == "told to stop"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_an_executor_that_breaks_ends_the_worker_and_says_why() -> None:
    async with listen() as engine, worker(engine.address) as there:
        await engine.receive()
        there.steps.error = PowerCut("no current")
        there.steps.gate.set()
        await engine.send("w", asked("j"), FRAMES)
        [goodbye] = await hear_but_beats(engine, 1)
        await there.ended.wait()

    assert goodbye == Goodbye("PowerCut: no current", clean=False)
    assert there.reason == "PowerCut: no current"


async def test_an_engine_that_was_away_hears_the_results_and_no_pile_of_beats(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/engine"
    async with worker(address, heartbeat_s=0.01) as there:
        async with listen(address) as engine:
            await hear(engine, Hello)
            for job in ("first", "second"):
                await engine.send("w", asked(job), FRAMES)
            await begun(there.steps)
            await hear_queued(engine, 1)
        await anyio.sleep(0.3)  # the link sees that nobody is there, and thirty beats come due
        there.steps.gate.set()
        for _ in range(2):
            await anyio.to_thread.run_sync(there.steps.ended.acquire)
        async with listen(address) as engine:
            heard: list[WorkerMessage] = []
            while sum(isinstance(message, StepResult) for message in heard) < 2:
                heard.append((await engine.receive()).message)

    results = [message.id.job for message in heard if isinstance(message, StepResult)]
    assert results == ["first", "second"]
    assert len(heard) <= 3


async def test_the_first_beat_comes_with_the_hello_however_late_the_engine_is(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/engine"
    async with worker(address, heartbeat_s=3600.0):
        await anyio.sleep(0.3)  # it has tried to say both, and to nobody
        async with listen(address) as engine:
            await hear(engine, Hello)
            await hear(engine, Heartbeat)


async def test_a_worker_that_comes_back_takes_its_name_over() -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as before:
        before.setsockopt(zmq.IDENTITY, b"w")
        before.setsockopt(zmq.RECONNECT_IVL, -1)  # a connection that the engine has not yet seen to be dead
        async with listen() as engine:
            before.connect(engine.address)
            before.send(b"anything")
            with pytest.raises(TimeoutError), anyio.fail_after(0.2):
                await engine.receive()
            async with worker(engine.address) as there:
                there.steps.gate.set()
                await hear(engine, Hello)
                await engine.send("w", asked("j"), FRAMES)
                result = (await hear(engine, StepResult)).message

    assert isinstance(result, StepResult)
    assert result.id.job == "j"


# -- the inbox --------------------------------------------------------------------------------------------------


def test_commands_are_obeyed_in_their_order() -> None:
    inbox = Inbox()
    commands = [Command(asked(job)) for job in "abc"]
    for command in commands:
        inbox.put(command)

    assert inbox.units() == 3
    assert [inbox.get() for _ in commands] == commands


def test_a_release_leaves_the_rest_of_a_batch_with_the_frames_that_are_its_own() -> None:
    inbox = Inbox()
    batch = Batch((asked("a"), replace(asked("b"), inline=()), asked("b"), asked("b", epoch=2), asked("c")))
    inbox.put(Command(batch, (b"a", b"b", b"b2", b"c")))
    inbox.put(Command(Batch((asked("b"), asked("b"))), (b"1", b"2")))

    inbox.release(Release("b", 1))

    assert inbox.units() == 3
    assert inbox.get() == Command(Release("b", 1), dropped=(asked("b").id,) * 4)
    assert inbox.get() == Command(Batch((asked("a"), asked("b", epoch=2), asked("c"))), (b"a", b"b2", b"c"))
    assert inbox.get_nowait() is None


@pytest.mark.parametrize("after", [Introduce(), asked("j"), Release("j", 1)])
def test_nothing_takes_a_shutdown_back(after: Introduce | WorkUnit | Release) -> None:
    inbox = Inbox()
    inbox.clear(Command(Shutdown()))

    match after:
        case Introduce():
            inbox.clear(Command(after))
        case Release():
            inbox.release(after)
            assert inbox.get() == Command(after)
        case WorkUnit():
            inbox.put(Command(after))

    assert inbox.get() == Command(Shutdown())
