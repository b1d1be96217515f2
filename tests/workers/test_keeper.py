"""Storing behind the executor's back: what is heard, when, and in which order."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from cards.family import Made
from cards.wire import Heartbeat, Released, StepResult, UnitId, WorkerMessage
from engine.link import listen
from store.blobs import digest_of
from tests.workers.test_worker_link import begun, hear, worker
from tests.workers.units import CountingBlobs, digests, executor, sent, unit
from workers.errors import BlobsUnavailable
from workers.execute import Answer
from workers.keeper import Keeper

PATIENCE_S = 30.0
LARGE = torch.zeros(1 << 15)
RELEASED = Released("j", 1, ())


class SlowBlobs(CountingBlobs):
    """A disk that takes nothing until the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.asked = threading.Event()
        self.refuses = False

    def put_named(self, blobs: Mapping[str, bytes]) -> None:
        self.asked.set()
        assert self.gate.wait(PATIENCE_S)
        if self.refuses:
            raise BlobsUnavailable("the disk is full")
        super().put_named(blobs)


class Heard:
    """What has left the worker, and how many blobs were stored by then."""

    def __init__(self, blobs: CountingBlobs) -> None:
        self._blobs = blobs
        self.messages: list[object] = []
        self.stored: list[int] = []

    def __call__(self, message: WorkerMessage, frames: Sequence[bytes]) -> None:
        self.stored.append(len(self._blobs.puts))
        self.messages.append(message)


@contextmanager
def keeping(blobs: CountingBlobs) -> Iterator[tuple[Keeper, Heard]]:
    heard = Heard(blobs)
    keeper = Keeper(executor(lambda reads: Made(), blobs).keep, heard)
    thread = threading.Thread(target=keeper.run)
    thread.start()
    try:
        yield keeper, heard
    finally:
        keeper.settle()
        keeper.close()
        thread.join(PATIENCE_S)


def answer(serial: int, *blobs: bytes) -> Answer:
    return Answer(StepResult(id=UnitId("j", 1, 1, 1, serial)), blobs={digest_of(data): data for data in blobs})


def test_an_executed_step_names_what_is_still_to_be_stored() -> None:
    blobs = CountingBlobs()
    runs = executor(lambda reads: Made({"y": LARGE}), blobs)

    made = runs.execute(unit(), [])

    assert [len(made.blobs), blobs.puts] == [1, []]
    assert runs.keep(made) == Answer(made.result)
    assert blobs.puts == [made.result.tensors["y"].digest]


def test_nobody_hears_of_a_step_before_its_blobs_are_stored_and_the_executor_goes_on() -> None:
    blobs = SlowBlobs()
    with keeping(blobs) as (keeper, heard):
        keeper.say([answer(1, b"large")])  # returns, though the disk is slow
        assert blobs.asked.wait(PATIENCE_S)

        assert heard.messages == []
        blobs.gate.set()

    assert [heard.messages, heard.stored] == [[answer(1).result], [1]]


def test_what_is_said_later_is_heard_later() -> None:
    blobs = SlowBlobs()
    with keeping(blobs) as (keeper, heard):
        keeper.say([answer(1, b"large")])
        keeper.say([answer(2)])
        blobs.gate.set()
        keeper.say(RELEASED)

    assert heard.messages == [answer(1).result, answer(2).result, RELEASED]


def test_what_needs_no_disk_leaves_at_once() -> None:
    blobs = SlowBlobs()
    with keeping(blobs) as (keeper, heard):
        keeper.say([answer(1)])
        keeper.say(RELEASED)

        assert heard.messages == [answer(1).result, RELEASED]


def test_a_store_that_refuses_makes_the_step_fail_and_not_the_next() -> None:
    blobs = SlowBlobs()
    blobs.refuses = True
    with keeping(blobs) as (keeper, heard):
        keeper.say([answer(1, b"large")])
        keeper.say([answer(2)])
        blobs.gate.set()

    first, second = heard.messages
    assert isinstance(first, StepResult)
    assert first.error is not None
    assert first.error.kind == "store_trouble"
    assert second == answer(2).result


async def test_a_unit_that_is_begun_while_an_answer_is_being_stored_is_named_to_the_engine() -> None:
    """If the worker now dies, it died of this one and not of the oldest that is not answered."""
    blobs = SlowBlobs()
    large, frames = sent(x=LARGE)
    async with listen() as engine, worker(engine.address, heartbeat_s=3600, blobs=blobs) as there:
        there.steps.gate.set()
        await hear(engine, Heartbeat)  # the one that comes with the hello
        units = [unit(large, job=job, inline=digests(large)) for job in ("first", "second")]
        for one in units:
            await engine.send("w", one, frames)
            await begun(there.steps)

        beat = (await hear(engine, Heartbeat)).message
        assert isinstance(beat, Heartbeat)
        assert (beat.running, blobs.puts) == ((units[1].id,), [])
        blobs.gate.set()
        assert [(await hear(engine, StepResult)).message.id for _ in units] == [one.id for one in units]  # type: ignore[union-attr]
