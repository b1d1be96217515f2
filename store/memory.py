"""The journal in dicts, for simulation and tests: as true as the others, but for what a process outlives."""

import asyncio
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Awaitable, Sequence
from itertools import islice

from store.admission import Admission, head_after
from store.answer import settle
from store.blobs import verified
from store.errors import StoreError
from store.journal import Append, Appended, Checkpoint, Event, JobRow, Loaded


class MemoryJournal:
    def __init__(self) -> None:
        self._admission = Admission(heads={}, keys={})
        self._log: list[Event] = []
        self._events: defaultdict[str, list[Event]] = defaultdict(list)
        self._checkpoints: dict[str, Checkpoint] = {}
        self._blobs: dict[str, bytes] = {}
        self._rows: dict[str, JobRow] = {}

    def append(self, append: Append) -> Awaitable[Appended]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Appended] = loop.create_future()
        loop.call_soon(settle, future, self._write(append))  # later, as a disk would
        return future

    async def load(self, stream: str) -> Loaded | None:
        return (await self.load_many([stream])).get(stream)

    async def load_many(self, streams: Sequence[str]) -> dict[str, Loaded]:
        return {name: self._load(name) for name in streams if name in self._admission.heads}

    async def streams(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
        return [name for name in sorted(self._admission.heads) if name.startswith(prefix) and name > after][:limit]

    async def read(self, stream: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        events = self._events[stream]
        start = bisect_right(events, after, key=lambda event: event.position)
        return events[start : start + limit]

    async def read_all(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        return self._log[after : after + limit]

    async def blobs(self, digests: Sequence[str]) -> dict[str, bytes]:
        return {digest: verified(digest, self._blobs[digest]) for digest in digests if digest in self._blobs}

    async def jobs(
        self,
        *,
        status: str | None = None,
        model: str | None = None,
        open: bool | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[JobRow]:
        rows = sorted(self._rows.values(), key=lambda row: (row.submitted_at, row.id), reverse=not open)
        if open:
            rows.sort(key=lambda row: -row.priority)
        if after is not None:
            rows = rows[rows.index(self._rows[after]) + 1 :] if after in self._rows else []
        wanted = (
            row
            for row in rows
            if status in (None, row.status) and model in (None, row.model) and open in (None, row.open)
        )
        return list(islice(wanted, limit))

    async def job_of_key(self, key: str) -> tuple[str, str] | None:
        taken = self._admission.keys.get(key)
        return (taken.stream, taken.fingerprint) if taken else None

    async def replace_rows(self, rows: Sequence[JobRow]) -> None:
        self._rows = {row.id: row for row in rows}

    def _load(self, stream: str) -> Loaded:
        head = self._admission.heads[stream]
        checkpoint = self._checkpoints.get(stream)
        folded = checkpoint.version if checkpoint else 0
        return Loaded(head.version, head.epoch, checkpoint, events=tuple(self._events[stream][folded:]))

    def _write(self, append: Append) -> Appended | StoreError:
        if (refusal := self._admission.admit(append)) is not None:
            return refusal
        head = head_after(append)
        for version, new in enumerate(append.events, start=append.expected + 1):
            position = len(self._log) + 1
            event = Event(position, append.stream, version, head.epoch, new.type, append.at, new.body)
            self._log.append(event)
            self._events[append.stream].append(event)
        self._keep(append)
        return Appended(head.version, position=len(self._log) if append.events else 0)

    def _keep(self, append: Append) -> None:
        if append.checkpoint is not None:
            self._checkpoints[append.stream] = Checkpoint(head_after(append).version, append.checkpoint)
        for blob in append.blobs:
            self._blobs.setdefault(blob.digest, blob.data)
        if append.row is not None:
            self._rows[append.row.id] = append.row
