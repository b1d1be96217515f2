"""The simulator finds what it is there for: each part here is broken in one way, and some seed must say so."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from engine.actor import JobActor
from engine.client import Client
from engine.dispatch import Dispatcher
from engine.engine import Engine
from engine.job import Job
from engine.ledger import Ledger
from engine.views import Told
from store.journal import Append, Appended
from store.memory import MemoryJournal
from tests.simulation.disk import SimJournal
from tests.simulation.world import Parts, simulate

ENOUGH = 60
"""Seeds within which each must be found."""


class AnswersEarly(SimJournal):
    """Acknowledges what it has yet to write."""

    def append(self, append: Append) -> Awaitable[Appended]:
        super().append(append)
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        future.set_result(Appended(append.expected + len(append.events), 0))
        return future


class Unfenced(MemoryJournal):
    """Takes every append as if its writer still owned the stream."""

    def append(self, append: Append) -> Awaitable[Appended]:
        if (loaded := _at_once(self.load(append.stream))) is not None:
            append = replace(append, expected=loaded.version, epoch=loaded.epoch)
        return super().append(append)


class Keyless(MemoryJournal):
    """Forgets idempotency keys."""

    def append(self, append: Append) -> Awaitable[Appended]:
        return super().append(replace(append, key=None))


class HastyLedger(Ledger):
    """Shows what has been decided, durable or not."""

    def write(self, actor: JobActor, *args: Any, **options: Any) -> "asyncio.Future[Job]":
        told = super().write(actor, *args, **options)
        actor.durable = actor.job
        return told


class TellsEarly(Engine):
    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.ledger.__class__ = HastyLedger


class LooksOnce(Engine):
    """Reconciles when it starts and never again."""

    looked = False

    async def reconcile(self) -> None:
        if not self.looked:
            self.looked = True
            await super().reconcile()


class Hoarder(Dispatcher):
    """Never has a worker forget a job."""

    async def release(self, actor: JobActor) -> None:
        pass


class KeepsAll(Engine):
    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.dispatcher.__class__ = Hoarder


class Skips(Client):
    """Resumes a reader one event too late."""

    async def watch(self, job_id: str, *, after: int = 0, **options: Any) -> AsyncGenerator[list[Told], None]:
        async for page in super().watch(job_id, after=after + bool(after), **options):
            yield page


BROKEN = {
    "acknowledges before it is durable": (Parts(journal=AnswersEarly), 1),
    "ignores epochs": (Parts(store=Unfenced), 2),
    "forgets idempotency keys": (Parts(store=Keyless), 1),
    "tells before it is durable": (Parts(engine=TellsEarly), 1),
    "never looks again": (Parts(engine=LooksOnce), 1),
    "releases nothing": (Parts(engine=KeepsAll), 1),
    "skips an event on resuming": (Parts(client=Skips), 1),
}
"""What is broken, and how many engines it takes."""


@pytest.mark.parametrize("broken", BROKEN)
def test_it_is_found(broken: str) -> None:
    parts, engines = BROKEN[broken]

    assert any(simulate(seed, parts=parts, engines=engines).problems for seed in range(ENOUGH))


def test_whole_parts_are_not_found_fault_with() -> None:
    found: Sequence[str] = [problem for seed in range(5) for problem in simulate(seed, parts=Parts()).problems]

    assert not found


def _at_once(coroutine: Any) -> Any:
    """What a coroutine that never waits returns."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")
