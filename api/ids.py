"""Every response says which request it answers: `x-request-id`, the caller's own or a new one."""

import re
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_ID = "x-request-id"
"""The header, and the key under which the scope's state holds it."""

_SANE = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


class RequestIds:
    """`ids` makes new ones."""

    def __init__(self, app: ASGIApp, ids: Callable[[], str]) -> None:
        self._app = app
        self._ids = ids

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        theirs = Headers(scope=scope).get(REQUEST_ID, "")
        request_id = theirs if _SANE.fullmatch(theirs) else self._ids()
        scope.setdefault("state", {})[REQUEST_ID] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)
