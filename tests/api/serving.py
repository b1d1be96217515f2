"""What the tests of the edge share: apps without sockets, a real server, and a reader of event streams."""

import asyncio
import itertools
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing
from typing import Any

import anyio
import httpx
import uvicorn
from starlette.applications import Starlette

from api.app import build_app
from api.ending import AnsweredAtTheEnd
from engine.clock import WallClock
from store.errors import StoreUnavailable
from store.journal import Append, Appended, Event
from store.memory import MemoryJournal
from tests.sim import Running


def app_of(running: Running, *, heartbeat_s: float = 10.0) -> Starlette:
    ids = itertools.count(1)
    return build_app(
        running.client,
        version="0.1.0",
        clock=WallClock(),
        ids=lambda: f"request-{next(ids)}",
        heartbeat_s=heartbeat_s,
    )


def without_sockets(app: Starlette) -> httpx.AsyncClient:
    """Unexpected errors of the app are answers here, as they are for a server's clients."""
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://test")


@asynccontextmanager
async def served(app: Starlette, listener: socket.socket | None = None) -> AsyncIterator[str]:
    """The app behind a real server and real sockets. Gives its base URL."""
    with closing(listener or socket.create_server(("127.0.0.1", 0))) as listener:
        ended = AnsweredAtTheEnd(app)
        config = uvicorn.Config(ended, log_level="error", lifespan="off", timeout_graceful_shutdown=1, ws="none")
        server = uvicorn.Server(config)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listener])
            while not server.started:
                await anyio.sleep(0.001)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            server.should_exit = True


def frames(data: bytes) -> Iterator[dict[str, str]]:
    """The events in as much of a stream as has arrived; an unfinished one, like a comment, is none."""
    for block in data.decode(errors="ignore").split("\n\n")[:-1]:
        lines = [line.split(": ", 1) for line in block.split("\n") if not line.startswith(":")]
        if lines:
            yield dict(lines)


def positions(data: bytes) -> list[int]:
    """Those of the events, each checked to be what its data says too."""
    found = []
    for frame in frames(data):
        told = json.loads(frame["data"])
        assert (told["position"], told["type"]) == (int(frame["id"]), frame["event"])
        found.append(told["position"])
    return found


async def log_of(running: Running, job: str) -> list[int]:
    told: list[int] = []
    while page := await running.client.events(job, after=told[-1] if told else 0):
        told += [one.position for one in page]
    return told


def listeners(running: Running) -> int:
    """How many wait for news of any job."""
    return running.engine.hub.listeners()


class HeldJournal:
    """A journal in memory that can be told to hold its writes back, to refuse them, or to refuse reads after some."""

    def __init__(self) -> None:
        self._inner = MemoryJournal()
        self._held: list[tuple[Append, asyncio.Future[Appended]]] | None = None
        self.reads_left: int | None = None
        self.full = False
        self.after_an_empty_read: Callable[[], Awaitable[None]] | None = None
        """Happens once, between an empty read and its return."""

    def hold(self) -> None:
        self._held = []

    @property
    def holds(self) -> int:
        """How many writes are held back."""
        return len(self._held or [])

    def release(self) -> None:
        """Write what is held, in order, and hold nothing back from now on."""
        held, self._held = self._held or [], None
        for append, told in held:
            if told.cancelled():
                continue  # its caller is gone
            written = asyncio.ensure_future(self._inner.append(append))
            written.add_done_callback(lambda done, told=told: told.set_result(done.result()))

    def append(self, append: Append) -> Awaitable[Appended]:
        told: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        if self.full:
            told.set_exception(StoreUnavailable("the disk is full"))
            return told
        if self._held is None:
            return self._inner.append(append)
        self._held.append((append, told))
        return told

    async def read(self, stream: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        if self.reads_left is not None:
            self.reads_left -= 1
            if self.reads_left < 0:
                raise StoreUnavailable("the disk is gone")
        events = await self._inner.read(stream, after=after, limit=limit)
        if not events and self.after_an_empty_read is not None:
            happen, self.after_an_empty_read = self.after_an_empty_read, None
            await happen()
        return events

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
