"""Whether a store is whole: the one check that follows every kill, of every scenario."""

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import psycopg
from msgspec import Struct

from engine.check import check
from store.blobs import Blobs, digest_of
from store.blobs.open import open_blobs
from store.errors import MissingBlob, StreamConflict
from store.journal import Append, Journal, NewEvent
from store.open import open_journal
from tests.crash.scenario import Place

SMALL = (b"a small tensor", b"another small tensor")
"""The bytes that scripts keep in the journal's rows, ..."""

LARGE = (bytes(100_000), b"a large tensor " * 80_000)
"""... those that they keep in the blob store, ..."""

KEYS = ("first", "second")
"""... and the idempotency keys that they use. A store does not list these, so it has to be asked."""

LATER = "after the crash"

NOTICED_S = 10
"""How long a database may take to notice that a client is gone."""

OTHERS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


class Sight(Struct, frozen=True):
    """All that a store shows of itself. Two are the same store only if all of it is the same."""

    streams: dict[str, Any]
    log: list[Any]
    rows: list[Any]
    keys: list[tuple[str, str] | None]
    engines: list[tuple[str, str, tuple[str, ...], bool]]
    """The last says whether the lease is live."""

    small: dict[str, bytes]
    large: frozenset[str]


async def sight(journal: Journal, blobs: Blobs) -> Sight:
    """Raises CorruptBlob."""
    names = await journal.streams("")
    return Sight(
        streams=await journal.load_many(names),
        log=await journal.read_all(limit=100_000),
        rows=await journal.jobs(limit=100_000),
        keys=[await journal.job_of_key(key) for key in KEYS],
        engines=[(e.name, e.url, e.models, e.left_s > 0) for e in await journal.engines()],
        small=await journal.blobs([digest_of(data) for data in SMALL]),
        large=frozenset(digest_of(data) for data in LARGE if _whole(blobs, data)),
    )


async def problems_after(place: Place, expected: Sequence[Sight] | None = None) -> list[str]:
    """Open the store as the next engine does, compare it with all that it may be (if given), and go on with it."""
    async with opened(place) as journal:
        for stream in await journal.purging():
            await journal.purge(stream, expected=0, epoch=0)
        found = await sight(journal, open_blobs(place.blobs))
        problems = _differences(found, expected) if expected is not None else []
        problems += (await check(journal)).problems
        problems += await _problems_of_going_on(journal, found)
    return problems + _problems_of_the_file(place)


@asynccontextmanager
async def opened(place: Place) -> AsyncIterator[Journal]:
    """The store, once the database has noticed that the engine which wrote to it was killed."""
    if place.url:
        deadline = anyio.current_time() + NOTICED_S
        with psycopg.connect(place.url, autocommit=True) as admin:
            while admin.execute(OTHERS).fetchone() != (0,) and anyio.current_time() < deadline:
                await anyio.sleep(0.005)
    async with open_journal(place.journal) as journal:
        yield journal


def _is(found: Sight, expected: Sight) -> bool:
    """A blob may be there before anyone was told of it; all that is said of the others is all that there is."""
    return found.large >= expected.large and _but_large(found) == _but_large(expected)


def _but_large(sight: Sight) -> list[Any]:
    return [sight.streams, sight.log, sight.rows, sight.keys, sight.engines, sight.small]


def _differences(found: Sight, expected: Sequence[Sight]) -> list[str]:
    """In what it differs from the most similar of those that it might have been; nothing, if it is one of them."""
    if any(_is(found, sight) for sight in expected):
        return []
    return min((_different_fields(found, sight) for sight in expected), key=len)


def _different_fields(found: Sight, expected: Sight) -> list[str]:
    fields = [(name, getattr(found, name), getattr(expected, name)) for name in found.__struct_fields__]
    return [f"{name} is {short(ours)}, not {short(theirs)}" for name, ours, theirs in fields if ours != theirs]


def short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 300 else f"{text[:300]}..."


async def _problems_of_going_on(journal: Journal, found: Sight) -> list[str]:
    """Take over every stream, and append: nobody who was there before can write, and no position comes again."""
    problems = []
    for stream, head in found.streams.items():
        await journal.append(_claim(stream, head.version, head.epoch))
        try:
            await journal.append(_claim(stream, head.version, head.epoch))
            problems.append(f"{stream}: its last owner can still write")
        except StreamConflict:
            pass
    appended = await journal.append(
        Append(stream=LATER, expected=0, epoch=0, at=0.0, events=(NewEvent("happened", b""),))
    )
    if appended.position <= max((event.position for event in found.log), default=0):
        problems.append(f"position {appended.position} was given out again")
    return problems


def _claim(stream: str, version: int, epoch: int) -> Append:
    return Append(stream=stream, expected=version, epoch=epoch, at=0.0, events=(), claim=True)


def _problems_of_the_file(place: Place) -> list[str]:
    if place.url:
        return []
    connection = sqlite3.connect(place.folder / "store.db")
    lines = [line for (line,) in connection.execute("PRAGMA integrity_check")]
    connection.close()
    return [] if lines == ["ok"] else lines


def _whole(blobs: Blobs, data: bytes) -> bool:
    """Raises CorruptBlob."""
    try:
        return blobs.get(digest_of(data)) == data
    except MissingBlob:
        return False
