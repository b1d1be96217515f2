"""The journal in dicts, for simulation and tests: as true as the others, but for what a process outlives."""

import asyncio
import secrets
from bisect import bisect_right
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from itertools import islice

from store.admission import Admission, Admitted, Head
from store.answer import settle
from store.blobs import verified
from store.errors import StoreError, StreamConflict
from store.journal import (
    ALL_JOBS,
    Append,
    Appended,
    Blob,
    Checkpoint,
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


class MemoryJournal:
    """`now` is the database's clock, in seconds. Several engines of one process may share it."""

    def __init__(self, now: Callable[[], float] = lambda: 0.0, *, shared: bool = False) -> None:
        self.shared = shared
        self._identity = secrets.token_hex(16)
        self._now = now
        self._heads: dict[str, Head] = {}
        self._admission = Admission(self._heads, keys={}, leases=())
        self._log: list[Event] = []
        self._position = 0
        self._events: defaultdict[str, list[Event]] = defaultdict(list)
        self._checkpoints: dict[str, Checkpoint] = {}
        self._blobs: dict[str, tuple[bytes, float]] = {}
        self._rows: dict[str, JobRow] = {}
        self._engines: dict[str, tuple[str, tuple[str, ...], float]] = {}
        self._listeners: set[asyncio.Event] = set()

    def append(self, append: Append) -> Awaitable[Appended]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Appended] = loop.create_future()
        loop.call_soon(settle, future, self._write(append))  # later, as a disk would
        return future

    async def load(self, stream: str) -> Loaded | None:
        return (await self.load_many([stream])).get(stream)

    async def load_many(self, streams: Sequence[str]) -> dict[str, Loaded]:
        return {name: self._load(name) for name in streams if name in self._heads}

    async def streams(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
        return [name for name in sorted(self._heads) if name.startswith(prefix) and name > after][:limit]

    async def read(self, stream: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        return _after(self._events[stream], after, limit)

    async def read_all(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        return _after(self._log, after, limit)

    async def blobs(self, digests: Sequence[str]) -> dict[str, bytes]:
        return {digest: verified(digest, self._blobs[digest][0]) for digest in digests if digest in self._blobs}

    async def jobs(self, where: JobFilter = ALL_JOBS, *, after: str | None = None, limit: int = 100) -> list[JobRow]:
        rows = self._in_turn() if where.open else sorted(self._rows.values(), key=_age, reverse=True)
        if after is not None:
            rows = rows[rows.index(self._rows[after]) + 1 :] if after in self._rows else []
        return list(islice((row for row in rows if _matches(row, where)), limit))

    async def open_jobs(self) -> int:
        return sum(row.open for row in self._rows.values())

    async def job_of_key(self, key: str) -> tuple[str, str] | None:
        taken = self._admission.keys.get(key)
        return (taken.stream, taken.fingerprint) if taken else None

    async def replace_rows(self, rows: Sequence[JobRow], *, at: int | None = None) -> bool:
        if at in (None, self._position):
            self._rows = {row.id: row for row in rows}
            return True
        return False

    async def identity(self) -> str:
        return self._identity

    async def news(self) -> AsyncGenerator[Sequence[News], None]:
        seen = self._position
        written = asyncio.Event()
        self._listeners.add(written)
        try:
            while True:
                await written.wait()
                written.clear()
                events = _after(self._log, seen, len(self._log))
                seen = self._position
                yield [News(event.stream, event.type, event.epoch) for event in events]
        finally:
            self._listeners.discard(written)

    async def hold_lease(self, engine: str, *, ttl_s: float, url: str = "", models: Sequence[str] = ()) -> None:
        self._engines[engine] = (url, tuple(models), self._now() + ttl_s)

    async def end_lease(self, engine: str) -> bool:
        return self._engines.pop(engine, None) is not None

    async def engines(self) -> list[EngineRow]:
        return [
            EngineRow(name, url, models, expires_at - self._now())
            for name, (url, models, expires_at) in sorted(self._engines.items())
        ]

    async def claimable(self, engine: str, limit: int) -> list[JobRow]:
        others = self._live() - {engine}
        return [row for row in self._in_turn() if row.open and row.owner not in others][:limit]

    async def adopt(self, copy: StreamCopy) -> None:
        if copy.stream in self._heads:
            raise StreamConflict(copy.stream, 0, 0)
        self._heads[copy.stream] = Head(copy.version, copy.epoch, copy.hash)
        for event in copy.events:
            self._add(event)
        if copy.checkpoint is not None:
            self._checkpoints[copy.stream] = copy.checkpoint
        self._keep(copy.blobs, copy.row)

    async def purge(self, stream: str, *, expected: int, epoch: int) -> None:
        head = self._heads.get(stream)
        if head is None or (head.version, head.epoch) != (expected, epoch):
            raise StreamConflict(stream, expected, epoch)
        del self._heads[stream]
        self._checkpoints.pop(stream, None)
        self._rows.pop(stream.removeprefix("job/"), None)
        self._log = [event for event in self._log if event.stream != stream]
        self._events.pop(stream, None)
        keys = self._admission.keys
        for key in [key for key, taken in keys.items() if taken.stream == stream]:
            del keys[key]

    async def purging(self) -> list[str]:
        return []

    async def inline_blobs(self, *, after: str = "", limit: int = 1000) -> list[InlineBlob]:
        digests = [digest for digest in sorted(self._blobs) if digest > after][:limit]
        found = [(digest, *self._blobs[digest]) for digest in digests]
        return [InlineBlob(digest, len(data), self._now() - seen_at) for digest, data, seen_at in found]

    async def keep_blobs(self, digests: Sequence[str]) -> set[str]:
        kept = {digest for digest in digests if digest in self._blobs}
        self._blobs |= {digest: (self._blobs[digest][0], self._now()) for digest in kept}
        return kept

    async def drop_blobs(self, digests: Sequence[str], *, grace_s: float) -> int:
        old = [digest for digest in digests if digest in self._blobs and self._blobs[digest][1] < self._now() - grace_s]
        for digest in old:
            del self._blobs[digest]
        return len(old)

    async def statistics_of_store(self) -> StoreStatistics:
        return StoreStatistics(
            streams=len(self._heads),
            events=len(self._log),
            checkpoints=len(self._checkpoints),
            jobs=len(self._rows),
            open_jobs=await self.open_jobs(),
            blobs=len(self._blobs),
            blob_bytes=sum(len(data) for data, _ in self._blobs.values()),
            last_position=self._position,
            nbytes=None,
        )

    def _load(self, stream: str) -> Loaded:
        head = self._heads[stream]
        checkpoint = self._checkpoints.get(stream)
        folded = checkpoint.version if checkpoint else 0
        return Loaded(head.version, head.epoch, checkpoint, tuple(self._events[stream][folded:]), head.hash)

    def _in_turn(self) -> list[JobRow]:
        return sorted(self._rows.values(), key=lambda row: (-row.priority, *_age(row)))

    def _live(self) -> set[str]:
        return {name for name, (_, _, expires_at) in self._engines.items() if expires_at > self._now()}

    def _write(self, append: Append) -> Appended | StoreError:
        self._admission.leases = self._live()
        admitted = self._admission.admit(append)
        if not isinstance(admitted, Admitted):
            return admitted
        numbered = enumerate(zip(append.events, admitted.hashes, strict=True), start=append.expected + 1)
        for version, (new, hash) in numbered:
            self._add(Event(0, append.stream, version, admitted.head.epoch, new.type, append.at, new.body, hash))
        if append.checkpoint is not None:
            self._checkpoints[append.stream] = Checkpoint(admitted.head.version, append.checkpoint)
        self._keep(append.blobs, append.row)
        return Appended(admitted.head.version, position=self._position if append.events else 0)

    def _add(self, event: Event) -> None:
        self._position += 1
        placed = Event(
            self._position, event.stream, event.version, event.epoch, event.type, event.at, event.body, event.hash
        )
        self._log.append(placed)
        for written in self._listeners:
            written.set()
        self._events[event.stream].append(placed)

    def _keep(self, blobs: Sequence[Blob], row: JobRow | None) -> None:
        for blob in blobs:
            self._blobs[blob.digest] = (blob.data, self._now())
        if row is not None:
            self._rows[row.id] = row


def _after(events: Sequence[Event], position: int, limit: int) -> list[Event]:
    start = bisect_right(events, position, key=lambda event: event.position)
    return list(events[start : start + limit])


def _age(row: JobRow) -> tuple[float, str]:
    return row.submitted_at, row.id


def _matches(row: JobRow, where: JobFilter) -> bool:
    return (
        where.status in (None, row.status)
        and where.model in (None, row.model)
        and where.open in (None, row.open)
        and where.owner in (None, row.owner)
        and row.id.startswith(where.prefix or "")
        and (where.submitted_before is None or row.submitted_at < where.submitted_before)
        and (where.updated_before is None or row.updated_at < where.updated_before)
        and (where.updated_after is None or row.updated_at > where.updated_after)
        and (where.attempts_from is None or row.attempts >= where.attempts_from)
        and where.metadata.items() <= (row.metadata or {}).items()
        and (row.metadata is None or not where.unreadable)
    )
