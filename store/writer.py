"""The one thread that writes: it takes whatever is queued, commits it as one group, and tells the event loop once.

No timer gathers a group. While one commits, the next gathers by itself.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from queue import Empty, SimpleQueue
from typing import TypeVar

import anyio
from anyio.to_thread import run_sync
from msgspec import Struct
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from store.answer import Answer, settle
from store.errors import StoreError, StoreLocked, StoreRefused, StoreUnavailable, StreamConflict
from store.journal import Append, Appended
from store.session import Session

GROUP_APPENDS = 256
GROUP_BYTES = 4 * 1024 * 1024

QUEUE_APPENDS = 8192
QUEUE_BYTES = 256 * 1024 * 1024
"""With more than this waiting for a slow disk callers are told to come again: memory only hides that it is slow."""


T = TypeVar("T")


class WriterStatistics(Struct, frozen=True):
    groups: int
    appends: int
    queued: int


class Request(Struct, frozen=True):
    append: Append
    nbytes: int
    future: asyncio.Future[Appended]


class Writer:
    """Appends are written in the order in which they were submitted.

    The queue is bounded; an append that finds it full is refused at once. `written` is called, on the event loop,
    after each group.
    """

    def __init__(
        self,
        session: Session,
        loop: asyncio.AbstractEventLoop,
        written: Callable[[], None],
        *,
        queue_appends: int = QUEUE_APPENDS,
    ) -> None:
        self._session = session
        self._loop = loop
        self._written = written
        self._queue: SimpleQueue[Request | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="journal writer", daemon=True)
        self._queue_appends = queue_appends
        self._waiting = 0
        self._waiting_bytes = 0
        self._groups = 0
        self._appends = 0
        self._running = False

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Take writes for as long as this is entered; what is queued at the end is written before it is left."""
        self._thread.start()
        self._running = True
        try:
            yield
        finally:
            self._running = False
            self._queue.put(None)
            with anyio.CancelScope(shield=True):  # a cancelled engine, too, leaves no append in the air
                await run_sync(self._thread.join)

    def submit(self, append: Append) -> asyncio.Future[Appended]:
        future: asyncio.Future[Appended] = self._loop.create_future()
        request = Request(append, _nbytes(append), future)
        if not self._running:
            future.set_exception(_not_running())
        elif self._waiting >= self._queue_appends or self._waiting_bytes >= QUEUE_BYTES:
            future.set_exception(StoreUnavailable(f"{self._waiting} appends wait for the disk already"))
        else:
            self._waiting += 1
            self._waiting_bytes += request.nbytes
            self._queue.put(request)
        return future

    async def alone(self, work: Callable[[Connection], T]) -> T:
        """A transaction of its own between two groups."""
        if not self._running:
            raise _not_running()
        done = await run_sync(self._session.transact, work)
        self._written()
        return done

    def statistics(self) -> WriterStatistics:
        return WriterStatistics(groups=self._groups, appends=self._appends, queued=self._waiting)

    def _run(self) -> None:
        while group := self._next_group():
            answers = self._write([request.append for request in group])
            self._loop.call_soon_threadsafe(self._tell, group, answers)
            self._session.tidy(len(group), sum(request.nbytes for request in group))

    def _next_group(self) -> list[Request]:
        """Wait for one request and take the others that are there. Empty when the writer is to end."""
        group: list[Request] = []
        nbytes = 0
        request = self._queue.get()
        while request is not None:
            group.append(request)
            nbytes += request.nbytes
            if len(group) == GROUP_APPENDS or nbytes >= GROUP_BYTES:
                return group
            try:
                request = self._queue.get_nowait()
            except Empty:
                return group
        if group:
            self._queue.put(None)  # the end comes after this group
        return group

    def _tell(self, group: Sequence[Request], answers: Sequence[Answer]) -> None:
        for request, answer in zip(group, answers, strict=True):
            self._waiting -= 1
            self._waiting_bytes -= request.nbytes
            settle(request.future, answer)
        self._written()

    def _write(self, appends: Sequence[Append]) -> Sequence[Answer]:
        self._groups += 1
        try:
            answers: Sequence[Answer] = self._session.write(appends)
        except (StoreUnavailable, StoreLocked) as error:
            answers = [StoreUnavailable(*error.args) for _ in appends]
        except Exception:  # noqa: BLE001  one of them is not as it should be, and the database does not say which
            answers = [self._write_alone(append) for append in appends]
        self._appends += sum(isinstance(answer, Appended) for answer in answers)
        return answers

    def _write_alone(self, append: Append) -> Answer:
        self._groups += 1
        try:
            [answer] = self._session.write([append])
        except IntegrityError:
            return StreamConflict(append.stream, append.expected, append.epoch)
        except StoreLocked as error:
            return StoreUnavailable(*error.args)
        except StoreError as error:
            return error
        except Exception as error:  # noqa: BLE001  it is for whoever awaits the append; the thread serves the others
            return StoreRefused(append.stream, error)
        return answer


def _not_running() -> StoreUnavailable:
    return StoreUnavailable("the store is not open for writing")


def _nbytes(append: Append) -> int:
    return (
        sum(len(event.body) for event in append.events)
        + len(append.checkpoint or b"")
        + sum(len(blob.data) for blob in append.blobs)
    )
