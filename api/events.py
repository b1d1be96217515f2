"""A job's log: a page of it as JSON, or all of it as a stream that goes on until the job has ended."""

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response

from api import present, requests, schema
from api.answers import Json
from api.errors import BadInput
from api.query import job_id, query
from api.sse import HEARTBEAT, EventStream, frame
from engine.client import Client
from engine.errors import EngineError

log = logging.getLogger("keyframe.api")

LAST_EVENT_ID = "Last-Event-ID"


class Events:
    """A stream that has been silent for `heartbeat_s` says that it is still there."""

    def __init__(self, client: Client, *, heartbeat_s: float) -> None:
        self._client = client
        self._heartbeat_s = heartbeat_s

    async def read(self, request: Request) -> Response:
        """What has happened to a job: JSON, or a stream with `Accept: text/event-stream`."""
        asked, job = query(request, requests.EventsQuery), job_id(request)
        if request.method == "GET" and "text/event-stream" in request.headers.get("accept", ""):
            return await self._stream(job, last_event_id(request, asked.after))
        told = await self._client.events(job, after=asked.after or 0, limit=asked.limit + 1)
        data = [present.event(one) for one in told[: asked.limit]]
        return Json(schema.EventPage(data, has_more=len(told) > asked.limit))

    async def _stream(self, job_id: str, after: int | None) -> Response:
        job = await self._client.job(job_id)
        if after is not None and job.terminal and not await self._client.events(job_id, after=after, limit=1):
            return Response(status_code=204)  # an EventSource would come back for ever after the end
        return EventStream(self._frames(job_id, after or 0))

    async def _frames(self, job_id: str, after: int) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(self._client.watch(job_id, after=after, heartbeat_s=self._heartbeat_s)) as watched:
                async for told in watched:
                    yield b"".join(frame(present.event(one)) for one in told) or HEARTBEAT
        except EngineError as error:  # the stream just ends: its reader comes back and continues where it was
            log.warning("ended a stream: %s", error, extra={"job": job_id})


def last_event_id(request: Request, otherwise: int | None) -> int | None:
    """Where a stream continues: the header of a reader that comes back, or what it asked for. Raises BadInput."""
    text = request.headers.get(LAST_EVENT_ID)
    if text is None:
        return otherwise
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise BadInput(LAST_EVENT_ID, f"{text!r} is no position in the log; send the last id of the stream, or none")
    return int(text)
