"""Journals over another one, whose disk is slow, full, or without power from some append on."""

import asyncio
from collections import deque
from collections.abc import Awaitable
from typing import Any

from store.errors import StoreUnavailable
from store.journal import Append, Appended, Journal


class Crash(BaseException):
    """The power goes out: no handler of errors may survive it."""


class QueuedJournal:
    """A journal whose appends reach the inner one later, one a turn of the event loop, as a disk would take them.

    `refuse` makes it answer the next so many with an error, as a full disk does. When `down` it takes nothing more:
    what was queued is lost with the power.
    """

    def __init__(self, inner: Journal) -> None:
        self._inner = inner
        self._queue: deque[tuple[Append, asyncio.Future[Appended]]] = deque()
        self.refuse = 0
        self.held = False
        self.down = False

    def append(self, append: Append) -> Awaitable[Appended]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Appended] = loop.create_future()
        self._queue.append((append, future))
        loop.call_soon(self._one)
        return future

    def release(self) -> None:
        """Go on after `held`."""
        self.held = False
        for _ in range(len(self._queue)):
            asyncio.get_running_loop().call_soon(self._one)

    def flush(self) -> None:
        """Everything that is queued is on disk now."""
        for append, _ in self._queue:
            self._inner.append(append)
        self._queue.clear()

    def _one(self) -> None:
        if self.down or self.held or not self._queue:
            return
        append, future = self._queue.popleft()
        if self.refuse:
            self.refuse -= 1
            future.set_exception(StoreUnavailable("the disk is full"))
        else:
            asyncio.ensure_future(self._inner.append(append)).add_done_callback(lambda done: _hand_on(done, future))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _hand_on(done: "asyncio.Future[Appended]", future: "asyncio.Future[Appended]") -> None:
    error = done.exception()
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())


class CrashingJournal:
    """Its `nth` append never returns: the power goes out, on disk is it only if `durable`.

    With it go the appends before it that the disk had not taken yet.
    """

    def __init__(self, inner: Journal, nth: int, *, durable: bool) -> None:
        self._disk = inner
        self._queue = QueuedJournal(inner)
        self.left = nth
        self._durable = durable

    def append(self, append: Append) -> Awaitable[Appended]:
        self.left -= 1
        if self.left > 0:
            return self._queue.append(append)
        if self.left == 0 and self._durable:
            self._queue.flush()
            self._disk.append(append)
        self._queue.down = True
        raise Crash

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)
