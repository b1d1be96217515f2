"""What is done with whole jobs and their bytes: taken in, let go of, forgotten."""

import tempfile
from pathlib import Path

import anyio
from starlette.requests import Request
from starlette.responses import Response

from api import present, requests
from api.answers import Json
from api.body import body
from api.errors import WrongMediaType
from api.query import job_id
from engine.client import Client

BUNDLE = "application/x-tar"


class Upkeep:
    def __init__(self, client: Client, *, body_limit: int) -> None:
        self._client = client
        self._body_limit = body_limit

    async def take_in(self, request: Request) -> Response:
        """A job that was exported from another store goes on in this one."""
        media_type = request.headers.get("content-type")
        if media_type != BUNDLE:
            raise WrongMediaType(media_type, BUNDLE)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "bundle"  # by which an error calls it
            async with await anyio.open_file(file, "wb") as written:
                async for chunk in request.stream():
                    await written.write(chunk)
            job = await self._client.take_in(file)
        return Json(present.accepted(job), 201, {"location": present.location(job.id)})

    async def move_away(self, request: Request) -> Response:
        """The log of a job that rests goes on in another store, from the version that was exported."""
        asked = await body(request, requests.MovedAway, limit=self._body_limit)
        moved = await self._client.verbs.move_away(job_id(request), asked.version, asked.to)
        return Json(present.operated(moved))

    async def collect(self, request: Request) -> Response:
        """Forget old jobs, old steps and the bytes that nothing names; a dry run tells what that would be."""
        asked = await body(request, requests.Collect, limit=self._body_limit, optional=True)
        collected = await self._client.collect(dry_run=asked.dry_run, take_over=asked.take_over)
        return Json(present.collected(collected))
