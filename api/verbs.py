"""What people do to jobs that are there: stop them, let them go on, take them back, move them."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from api import present, requests
from api.answers import Json
from api.body import body
from api.query import job_id
from engine.client import Client
from engine.operate import Operated


class Verbs:
    """Every verb may be asked for twice: the second time it says that nothing changed."""

    def __init__(self, client: Client, *, body_limit: int) -> None:
        self._client = client
        self._verbs = client.verbs
        self._body_limit = body_limit

    async def pause(self, request: Request) -> Response:
        """Send no further step of a job. One that is running still counts."""
        return await self._because(request, self._verbs.pause)

    async def resume(self, request: Request) -> Response:
        """Let a paused job go on."""
        return _answer(await self._verbs.resume(job_id(request)))

    async def retry(self, request: Request) -> Response:
        """Give a job that failed or was cancelled a new chance, from its last checkpoint."""
        return await self._because(request, self._verbs.retry)

    async def terminate(self, request: Request) -> Response:
        """Cancel a job at once, whatever a worker is still doing for it."""
        return await self._because(request, self._verbs.terminate)

    async def quarantine(self, request: Request) -> Response:
        """Set a job aside: no engine touches it until it is released."""
        return await self._because(request, self._verbs.quarantine)

    async def release(self, request: Request) -> Response:
        """Let a job out of quarantine: it goes on from its last checkpoint."""
        return _answer(await self._verbs.lift(job_id(request)))

    async def rewind(self, request: Request) -> Response:
        """Take a job back to where it was after some of its steps."""
        asked = await body(request, requests.Rewind, limit=self._body_limit)
        return _answer(await self._verbs.rewind(job_id(request), asked.to_step, asked.reason))

    async def pin(self, request: Request) -> Response:
        """Keep what a job needs to be forked, rewound or replayed from one of its steps."""
        asked = await body(request, requests.Pin, limit=self._body_limit)
        return _answer(await self._verbs.pin(job_id(request), asked.step, asked.reason))

    async def unpin(self, request: Request) -> Response:
        """Leave a step to retention again."""
        asked = await body(request, requests.Unpin, limit=self._body_limit)
        return _answer(await self._verbs.unpin(job_id(request), asked.step))

    async def migrate(self, request: Request) -> Response:
        """Move a job to a pool or an engine after the step that it is in; a dry run tells what would happen."""
        asked = await body(request, requests.Move, limit=self._body_limit)
        to = await self._client.destination(asked.to)
        moved = await self._verbs.migrate(
            job_id(request), pool=to.get("pool"), engine=to.get("engine"), reason=asked.reason, dry_run=asked.dry_run
        )
        return Json(present.migration(moved))

    async def _because(self, request: Request, verb: Callable[[str, str], Awaitable[Operated]]) -> Response:
        asked = await body(request, requests.Because, limit=self._body_limit, optional=True)
        return _answer(await verb(job_id(request), asked.reason))


def _answer(operated: Operated) -> Response:
    return Json(present.operated(operated))
