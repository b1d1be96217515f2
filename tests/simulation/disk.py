"""The store of a simulated world: one journal in memory that outlives every engine, and each engine's own way to it.

A journal commits in groups and in order, as the writer thread does. It can be slow, refuse, or refuse what it has
written; when its engine is killed, the group that was on its way is on disk or it is not.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from random import Random
from typing import Any

from store.blobs import MemoryBlobs
from store.errors import StoreUnavailable
from store.journal import Append, Appended, Journal, News
from store.memory import MemoryJournal
from tests.simulation.trace import Trace

Request = tuple[Append, "asyncio.Future[Appended]"]

REFUSAL = StoreUnavailable("the disk does not answer")


class Disk:
    """`refuses` is the chance that a group is refused, `unsure` that a refused one was written all the same.

    `authors` says which engine wrote each version of a stream.
    """

    def __init__(self, chance: Random, trace: Trace, inner: Journal | None = None) -> None:
        self.inner: Journal = inner or MemoryJournal()
        self.chance = chance
        self.trace = trace
        self.authors: dict[tuple[str, int], str] = {}
        self.usual_s = chance.choice([0.0005, 0.004, 0.05])
        self.slow_s = 0.0
        self.refuses = 0.0
        self.unsure = 0.0

    def heal(self) -> None:
        self.slow_s = self.refuses = self.unsure = 0.0

    def latency(self) -> float:
        return self.chance.expovariate(1) * (self.slow_s or self.usual_s)

    def refused(self) -> bool:
        return self.chance.random() < self.refuses

    async def turn(self) -> None:
        """Wait for the disk. Raises StoreUnavailable."""
        await asyncio.sleep(self.latency() / 4)
        if self.refused():
            raise REFUSAL


def _reading(name: str) -> Callable[..., Awaitable[Any]]:
    async def read(self: "SimJournal", *args: Any, **options: Any) -> Any:
        await self.disk.turn()
        found = await getattr(self.disk.inner, name)(*args, **options)
        await self.disk.turn()
        return found

    return read


class SimJournal:
    """One engine's journal."""

    def __init__(self, disk: Disk, owner: str) -> None:
        self.disk = disk
        self._owner = owner
        self._queue: deque[Request] = deque()
        self._group: list[Request] = []
        self._written = False
        self._down = False

    load = _reading("load")
    load_many = _reading("load_many")
    streams = _reading("streams")
    read = _reading("read")
    read_all = _reading("read_all")
    blobs = _reading("blobs")
    jobs = _reading("jobs")
    open_jobs = _reading("open_jobs")
    job_of_key = _reading("job_of_key")
    replace_rows = _reading("replace_rows")
    hold_lease = _reading("hold_lease")
    end_lease = _reading("end_lease")
    engines = _reading("engines")
    claimable = _reading("claimable")
    keep_blobs = _reading("keep_blobs")
    purge = _reading("purge")

    @property
    def shared(self) -> bool:
        return self.disk.inner.shared

    async def news(self) -> AsyncGenerator[Sequence[News], None]:
        async with aclosing(self.disk.inner.news()) as pages:
            async for news in pages:
                await asyncio.sleep(self.disk.latency())
                yield news

    def append(self, append: Append) -> Awaitable[Appended]:
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._queue.append((append, future))
        self._next()
        return future

    def lose_power(self) -> None:
        """Its engine is killed: nothing more is written, but perhaps what is being written now."""
        self._down = True
        if self._group and not self._written and self.disk.chance.random() < 0.5:
            self._write(self._group)

    def _next(self) -> None:
        if self._queue and not self._group and not self._down:
            self._group = list(self._queue)
            self._queue.clear()
            self._written = False
            asyncio.get_running_loop().call_later(self.disk.latency(), self._commit)

    def _commit(self) -> None:
        if self._down:
            return
        if self.disk.refused():
            unsure = self.disk.chance.random() < self.disk.unsure
            self.disk.trace(self._owner, f"the disk refuses {len(self._group)} appends{', after writing' * unsure}")
            if unsure:
                self._write(self._group)
            self._tell([REFUSAL] * len(self._group))
        else:
            self._write(self._group).add_done_callback(lambda done: self._answer(done.result()))

    def _answer(self, answers: list[Any]) -> None:
        """They are durable: the engine learns of it a little later."""
        asyncio.get_running_loop().call_later(self.disk.latency() / 10, self._tell, answers)

    def _tell(self, answers: list[Any]) -> None:
        if self._down:
            return
        group, self._group = self._group, []
        for (_, future), answer in zip(group, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)
        self._next()

    def _write(self, group: list[Request]) -> "asyncio.Future[list[Any]]":
        """Durable as soon as this returns; the future has the answers."""
        appends = [append for append, _ in group]
        written = asyncio.gather(*map(self.disk.inner.append, appends), return_exceptions=True)
        self._written = True
        written.add_done_callback(lambda done: self._sign(appends, done.result()))
        return written

    def _sign(self, appends: list[Append], answers: list[Any]) -> None:
        for append, answer in zip(appends, answers, strict=True):
            kinds = " ".join(event.type for event in append.events)
            outcome = f"-> {answer.version}" if isinstance(answer, Appended) else f"refused: {answer}"
            self.disk.trace(self._owner, f"{append.stream} epoch {append.epoch + append.claim}: {kinds} {outcome}")
            if isinstance(answer, Appended):
                versions = range(append.expected + 1, answer.version + 1)
                self.disk.authors |= {(append.stream, version): self._owner for version in versions}


class SimBlobs(MemoryBlobs):
    """Blobs that all processes see. While `failing` none can be written or read."""

    failing = False

    def put_named(self, blobs: Mapping[str, bytes]) -> None:
        self._try()
        super().put_named(blobs)

    def get(self, digest: str) -> bytes:
        self._try()
        return super().get(digest)

    def _try(self) -> None:
        if self.failing:
            raise StoreUnavailable("the blob folder does not answer")
