"""Server-sent events: how one is written, and the response that streams them for as long as anyone listens."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.answers import encode
from api.schema import Event

HEARTBEAT = b": heartbeat\n\n"


def frame(event: Event) -> bytes:
    """The position is the id, so that a reader that comes back says where it was."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.position, event.type.encode(), encode(event))


class EventStream(Response):
    """Sends frames until they end or the client goes; either way the frames are closed before this returns."""

    media_type = "text/event-stream"

    def __init__(self, frames: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._frames = frames

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._frames), anyio.create_task_group() as tasks:
            tasks.start_soon(_until_gone, receive, tasks.cancel_scope)
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for data in self._frames:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
            tasks.cancel_scope.cancel()


async def _until_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
