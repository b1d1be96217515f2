"""The journal in SQLite and PostgreSQL: appends go through the writer, reads beside it."""

from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import anyio
from sqlalchemy import Float, literal_column
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from store import reads, upkeep
from store.blobs import verified
from store.database import Database
from store.driver import DIALECTS
from store.errors import NoIdentity, StoreUnavailable
from store.group import replace_jobs
from store.journal import (
    ALL_JOBS,
    Append,
    Appended,
    EngineRow,
    Event,
    InlineBlob,
    JobFilter,
    JobRow,
    Loaded,
    News,
    StoreStatistics,
    StreamCopy,
)
from store.session import unavailable_when_refused
from store.writer import Writer, WriterStatistics

if TYPE_CHECKING:
    from store.bell import Bell

NEWS_AT_ONCE = 1000

NAMES_A_STATEMENT = 500
"""SQLite takes a limited number of parameters."""

READ_S = 30
"""Reads take milliseconds. One that takes this long is not going to be answered."""


class SqlJournal:
    """`bell` rings when another process may have written; None where there is no other."""

    def __init__(self, database: Database, writer: Writer, engine: AsyncEngine, bell: "Bell | None") -> None:
        self._database = database
        self._writer = writer
        self._engine = engine
        self._bell = bell
        self._now = literal_column(DIALECTS[engine.dialect.name].now, Float)

    def append(self, append: Append) -> Awaitable[Appended]:
        return self._writer.submit(append)

    async def load(self, stream: str) -> Loaded | None:
        return (await self.load_many([stream])).get(stream)

    async def load_many(self, streams: Sequence[str]) -> dict[str, Loaded]:
        found: dict[str, Loaded] = {}
        for some in _batches(streams):
            found |= reads.to_loaded(await self._ask(reads.loaded(some)))
        return found

    async def streams(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
        return [row.stream for row in await self._ask(reads.names(prefix, after, limit))]

    async def read(self, stream: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        return reads.to_events(await self._ask(reads.events_of(stream, after, limit)))

    async def read_all(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        return reads.to_events(await self._ask(reads.events_of_all(after, limit)))

    async def blobs(self, digests: Sequence[str]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for some in _batches(digests):
            found |= {digest: verified(digest, data) for digest, data in await self._ask(reads.inline_blobs(some))}
        return found

    async def jobs(self, where: JobFilter = ALL_JOBS, *, after: str | None = None, limit: int = 100) -> list[JobRow]:
        return reads.to_jobs(await self._ask(reads.job_rows(where, after, limit)))

    async def open_jobs(self) -> int:
        return int((await self._ask(reads.open_jobs()))[0][0])

    async def job_of_key(self, key: str) -> tuple[str, str] | None:
        for stream, fingerprint in await self._ask(reads.key(key)):
            return stream, fingerprint
        return None

    async def replace_rows(self, rows: Sequence[JobRow], *, at: int | None = None) -> bool:
        return await self._writer.alone(lambda connection: replace_jobs(connection, rows, at))

    def statistics(self) -> WriterStatistics:
        return self._writer.statistics()

    @property
    def shared(self) -> bool:
        return not self._database.exclusive

    async def identity(self) -> str:
        for (name,) in await self._ask(reads.identity_of_store()):
            return str(name)
        raise NoIdentity

    async def news(self) -> AsyncGenerator[Sequence[News], None]:
        if self._bell is None:
            await anyio.sleep_forever()
            return
        after = (await self._ask(reads.last_position()))[0][0]
        while True:
            await self._bell.wait()
            with suppress(StoreUnavailable):  # nothing is missed: who is told next goes on where this one was
                while rows := await self._ask(reads.appended_to(after, NEWS_AT_ONCE)):
                    after = rows[-1].position
                    yield [News(*row[1:]) for row in rows]

    # -- engines ------------------------------------------------------------------------------------------------

    async def hold_lease(self, engine: str, *, ttl_s: float, url: str = "", models: Sequence[str] = ()) -> None:
        alone = self._database.exclusive
        await self._writer.alone(
            lambda connection: upkeep.hold_lease(connection, engine, ttl_s=ttl_s, url=url, models=models, alone=alone)
        )

    async def end_lease(self, engine: str) -> bool:
        return await self._writer.alone(lambda connection: upkeep.end_lease(connection, engine))

    async def engines(self) -> list[EngineRow]:
        return reads.to_engines(await self._ask(reads.engine_rows(self._now)))

    async def claimable(self, engine: str, limit: int) -> list[JobRow]:
        return reads.to_jobs(await self._ask(reads.claimable(engine, self._now, limit)))

    # -- moving and forgetting ----------------------------------------------------------------------------------

    async def adopt(self, copy: StreamCopy) -> None:
        await self._writer.alone(lambda connection: upkeep.adopt(connection, copy))

    async def purge(self, stream: str, *, expected: int, epoch: int) -> None:
        await self._writer.alone(lambda connection: upkeep.begin_purge(connection, stream, expected, epoch))
        while await self._writer.alone(lambda connection: upkeep.go_on_purging(connection, stream)):
            pass

    async def purging(self) -> list[str]:
        return [row.stream for row in await self._ask(reads.purging())]

    async def inline_blobs(self, *, after: str = "", limit: int = 1000) -> list[InlineBlob]:
        return [InlineBlob(*row) for row in await self._ask(reads.inline_listing(self._now, after, limit))]

    async def keep_blobs(self, digests: Sequence[str]) -> set[str]:
        kept: set[str] = set()
        for some in _batches(digests):
            kept |= await self._writer.alone(partial(upkeep.keep_blobs, digests=some))
        return kept

    async def drop_blobs(self, digests: Sequence[str], *, grace_s: float) -> int:
        dropped = 0
        for some in _batches(digests):
            dropped += await self._writer.alone(partial(upkeep.drop_blobs, digests=some, grace_s=grace_s))
        return dropped

    async def statistics_of_store(self) -> StoreStatistics:
        [counts] = await self._ask(reads.counts(self._database.size))
        return StoreStatistics(*counts)

    async def _ask(self, question: reads.Question) -> reads.Rows:
        # A reader that is cut off would cost its connection, so even a cancelled one waits for its answer.
        with unavailable_when_refused(), anyio.fail_after(READ_S, shield=True):
            try:
                return await self._answer(question)
            except DBAPIError as error:
                if not error.connection_invalidated:
                    raise
            return await self._answer(question)  # the server was restarted; this is another connection

    async def _answer(self, question: reads.Question) -> reads.Rows:
        async with self._engine.connect() as connection:
            return (await connection.execute(question)).all()


def _batches(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[start : start + NAMES_A_STATEMENT] for start in range(0, len(names), NAMES_A_STATEMENT)]
