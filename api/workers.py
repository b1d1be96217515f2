"""The workers that have joined, and what operators do to them."""

from starlette.requests import Request
from starlette.responses import Response

from api import present, requests, schema
from api.answers import Json
from api.body import body
from engine.client import Client


class Workers:
    def __init__(self, client: Client, *, body_limit: int) -> None:
        self._client = client
        self._body_limit = body_limit

    async def list(self, request: Request) -> Response:
        """The workers there are, and what is with them."""
        return Json(schema.WorkerList(data=[present.worker(seen) for seen in self._client.workers()]))

    async def drain(self, request: Request) -> Response:
        """Give a worker no more work: its jobs go on elsewhere after the step they are in, and then it leaves."""
        worker: str = request.path_params["worker"]
        await self._client.drain_worker(worker)
        return Json(schema.Dismissal(worker, "draining"), 202)

    async def fence(self, request: Request) -> Response:
        """Give a worker up at once: its jobs go on elsewhere, and what it still says decides nothing."""
        worker: str = request.path_params["worker"]
        asked = await body(request, requests.Because, limit=self._body_limit, optional=True)
        await self._client.fence_worker(worker, asked.reason)
        return Json(schema.Dismissal(worker, "fenced"))

    async def sleep(self, request: Request) -> Response:
        """Have a worker unload components, whose memory is free then. A step that needs one loads it again."""
        worker: str = request.path_params["worker"]
        asked = await body(request, requests.Components, limit=self._body_limit, optional=True)
        told = await self._client.sleep_worker(worker, asked.components, asked.models)
        return Json(schema.Rest(worker, "falling_asleep", tuple(told)), 202)

    async def wake(self, request: Request) -> Response:
        """Have a worker load components now, as far as it has room."""
        worker: str = request.path_params["worker"]
        asked = await body(request, requests.Components, limit=self._body_limit, optional=True)
        told = await self._client.wake_worker(worker, asked.components, asked.models)
        return Json(schema.Rest(worker, "waking", tuple(told)), 202)
