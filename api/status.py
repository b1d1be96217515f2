"""The engine itself: the models it has, and whether it lives and can work."""

from starlette.requests import Request
from starlette.responses import Response

from api import present, schema
from api.answers import Json
from engine.client import Client


class EngineStatus:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def models(self, request: Request) -> Response:
        """The models, their limits, and whether a worker that runs them is there now; and those that cannot be used."""
        data = [present.model(card, self._client.servable(card.name)) for card in self._client.models()]
        return Json(schema.ModelList(data=data, unusable=dict(self._client.unusable())))

    async def live(self, request: Request) -> Response:
        """Whether this process answers."""
        return Json(schema.Live(self._client.name))

    async def ready(self, request: Request) -> Response:
        """Whether work would move; if not, why."""
        readiness = self._client.readiness()
        return Json(schema.Ready(readiness.ready, readiness.reasons), 200 if readiness.ready else 503)
