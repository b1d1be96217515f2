"""Between the engines of one PostgreSQL database: who has written rings, and the others look at the log.

Rule 1: no notification inside an append's transaction. At commit it takes a lock that all writers share.
Rule 2: a notification is a hint and may be lost. Whoever waits looks again after a while in any case.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import psycopg
from sqlalchemy import URL

from store.database import POLL_S, RETRY_S

log = logging.getLogger("keyframe.store")

CHANNEL = "keyframe"

COALESCE_S = 0.005
"""At most one notification in this time, however many groups are committed."""

RINGING_S = 5.0


class Bell:
    """Whoever waits looks again after `poll_s`; a connection that broke is made anew after `retry_s`."""

    def __init__(self, url: URL, *, poll_s: float = POLL_S, retry_s: float = RETRY_S) -> None:
        self._url = url.set(drivername="postgresql").render_as_string(hide_password=False)
        self._poll_s = poll_s
        self._retry_s = retry_s
        self._written = asyncio.Event()
        self._heard = asyncio.Event()
        self._speaker = 0
        """The server's process for the connection that rings."""

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._connected, self._speak)
            tasks.start_soon(self._connected, self._listen)
            yield
            tasks.cancel_scope.cancel()

    def ring(self) -> None:
        """Something has been committed here."""
        self._written.set()

    async def wait(self) -> None:
        """Until another process may have written something."""
        with anyio.move_on_after(self._poll_s):
            await self._heard.wait()
        self._heard.clear()

    async def _connected(self, duty: Callable[[psycopg.AsyncConnection[Any]], Awaitable[None]]) -> None:
        """Do it for ever, on a new connection whenever one breaks."""
        while True:
            try:
                async with self._connection() as connection:
                    await duty(connection)
            except (psycopg.Error, TimeoutError) as error:
                log.warning("no notifications for now, polling goes on: %s", " ".join(str(error).split()))
            await anyio.sleep(self._retry_s)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        with anyio.CancelScope(shield=True):  # one that is cut off half-way is never closed
            connection = await psycopg.AsyncConnection.connect(self._url, autocommit=True, connect_timeout=5)
        try:
            yield connection
        finally:
            with anyio.CancelScope(shield=True):
                await connection.close()

    async def _speak(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._speaker = connection.info.backend_pid
        while True:
            await self._written.wait()
            self._written.clear()
            with anyio.fail_after(RINGING_S, shield=True):  # one that is cut off half-way costs the connection
                await connection.execute(f"NOTIFY {CHANNEL}")
            await anyio.sleep(COALESCE_S)

    async def _listen(self, connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute(f"LISTEN {CHANNEL}")
        self._heard.set()  # what was rung while nobody listened
        async for notice in connection.notifies():
            if notice.pid != self._speaker:
                self._heard.set()
