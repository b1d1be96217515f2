"""The journal in SQLite and PostgreSQL: appends go through the writer, reads beside it."""

from collections.abc import Awaitable, Sequence

import anyio
from sqlalchemy.ext.asyncio import AsyncEngine

from store import reads
from store.blobs import verified
from store.group import replace_jobs
from store.journal import Append, Appended, Event, JobRow, Loaded
from store.session import unavailable_when_refused
from store.writer import Writer, WriterStatistics

NAMES_A_STATEMENT = 500
"""SQLite takes a limited number of parameters."""

READ_S = 30
"""Reads take milliseconds. One that takes this long is not going to be answered."""


class SqlJournal:
    def __init__(self, writer: Writer, engine: AsyncEngine) -> None:
        self._writer = writer
        self._engine = engine

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

    async def jobs(
        self,
        *,
        status: str | None = None,
        model: str | None = None,
        open: bool | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[JobRow]:
        return reads.to_jobs(await self._ask(reads.job_rows(status, model, open, after, limit)))

    async def job_of_key(self, key: str) -> tuple[str, str] | None:
        for stream, fingerprint in await self._ask(reads.key(key)):
            return stream, fingerprint
        return None

    async def replace_rows(self, rows: Sequence[JobRow]) -> None:
        await self._writer.alone(lambda connection: replace_jobs(connection, rows))

    def statistics(self) -> WriterStatistics:
        return self._writer.statistics()

    async def _ask(self, question: reads.Question) -> reads.Rows:
        # A reader that is cut off would cost its connection, so even a cancelled one waits for its answer.
        with unavailable_when_refused(), anyio.fail_after(READ_S, shield=True):
            async with self._engine.connect() as connection:
                return (await connection.execute(question)).all()


def _batches(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[start : start + NAMES_A_STATEMENT] for start in range(0, len(names), NAMES_A_STATEMENT)]
