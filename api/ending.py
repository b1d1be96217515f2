"""What a server breaks off when it stops, it answers."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import RULES, answer
from engine.errors import Draining

UNKNOWN = "the engine stopped before this was done; it may be done yet: look at the job, or ask again"


class AnsweredAtTheEnd:
    """Around an app whose server runs each request in a task and, once it has waited long enough, cancels that task.

    Not for an app that is called within somebody else's task: the cancel ends here.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def send_and_tell(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, send_and_tell)
        except asyncio.CancelledError:
            if not begun:
                rule = RULES[Draining]
                await answer(rule.status, rule.code, UNKNOWN, headers=rule.headers)(scope, receive, send)
