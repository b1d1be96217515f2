"""The usual scenario: a script of calls on a store.

A process runs it on a store on disk and is killed somewhere on the way. `Reference` has run all of it over a journal in
memory, and kept what there was to see after each call. What is found after the kill must be one of these sights: none
older than the last answer that the process had, none newer than its last question.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Protocol, TypeAlias

import anyio

from store import sqlite
from store.blobs import Blobs, MemoryBlobs
from store.blobs.open import open_blobs
from store.errors import KeyTaken, LeaseLost, StoreUnavailable, StreamConflict
from store.journal import Journal
from store.memory import MemoryJournal
from store.open import open_journal
from tests.crash.checker import Sight, problems_after, sight
from tests.crash.scenario import Place, Prepare, Scenario, Tell


class Store(Protocol):
    """What a script works on."""

    journal: Journal
    blobs: Blobs

    async def do(self, *calls: "Call") -> None:
        """Make the calls, all at once, and wait for the answers."""
        ...

    async def reopen(self) -> None:
        """Close it and open it again."""
        ...


WAL_BYTES = 100_000
"""So little that SQLite moves its log into the file every few appends."""

Call: TypeAlias = Callable[[Store], Awaitable[Any]]
Script: TypeAlias = Callable[[Store], Awaitable[None]]


def scripted(script: Script, prepare: Prepare) -> Scenario:
    reference = anyio.run(Reference.of, script)

    async def live(place: Place, tell: Tell) -> None:
        sqlite.WAL_BYTES = WAL_BYTES
        with suppress(StoreUnavailable):  # a lost connection leaves a question open, as a kill does
            async with Living.at(place, tell) as store:
                await script(store)

    async def check(place: Place, told: Sequence[str]) -> list[str]:
        asked = max((int(line.split()[1]) for line in told if line.startswith("asked")), default=0)
        answers = [line.removeprefix("answered ") for line in told if line.startswith("answered")]
        if answers != reference.answers[: len(answers)]:
            return [f"answers: {answers}"]
        return await problems_after(place, reference.sights[len(answers) : asked + 1])

    return Scenario(live, check, prepare)


class Living:
    """A store on disk. It tells of each call before it is made, and of the answer when it is there."""

    journal: Journal

    def __init__(self, place: Place, tell: Tell) -> None:
        self.blobs: Blobs = open_blobs(place.blobs)
        self._place = place
        self._tell = tell
        self._asked = 0
        self._open = AsyncExitStack()

    @classmethod
    @asynccontextmanager
    async def at(cls, place: Place, tell: Tell) -> AsyncIterator["Living"]:
        store = cls(place, tell)
        try:
            await store.reopen()
            yield store
        finally:
            await store._open.aclose()

    async def do(self, *calls: Call) -> None:
        self._asked += len(calls)
        self._tell(f"asked {self._asked}")
        for answer in [call(self) for call in calls]:
            self._tell(f"answered {await _answered(answer)}")

    async def reopen(self) -> None:
        await self._open.aclose()
        self.journal = await self._open.enter_async_context(open_journal(self._place.journal))


class Reference:
    """A store in memory: `answers` are those of all calls, `sights[n]` is what there was to see after `n` of them."""

    def __init__(self) -> None:
        self.journal: Journal = MemoryJournal()
        self.blobs: Blobs = MemoryBlobs(now=time.time)
        self.sights: list[Sight] = []
        self.answers: list[str] = []

    @classmethod
    async def of(cls, script: Script) -> "Reference":
        reference = cls()
        reference.sights.append(await sight(reference.journal, reference.blobs))
        await script(reference)
        return reference

    async def do(self, *calls: Call) -> None:
        for call in calls:
            self.answers.append(await _answered(call(self)))
            self.sights.append(await sight(self.journal, self.blobs))

    async def reopen(self) -> None:
        pass


async def _answered(answer: Awaitable[Any]) -> str:
    try:
        return repr(await answer)
    except (StreamConflict, KeyTaken, LeaseLost) as refusal:
        return repr(refusal)
