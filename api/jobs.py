"""Jobs: submit, fork, list, look, cancel, and what their steps left."""

from collections.abc import Sequence

import anyio.to_thread
from msgspec import UNSET, structs
from starlette.requests import Request
from starlette.responses import Response

from api import present, requests, schema
from api.answers import Json
from api.body import body
from api.errors import BadInput
from api.query import checked_job_id, job_id, query
from cards import lora
from cards.card import ModelCard
from cards.given import Given, check_inputs, encoded, picture
from cards.lora import Lora
from cards.request import RequestChanges
from engine.client import Client
from engine.errors import JobNotFound
from engine.job import Job
from engine.views import JobFilter

IDEMPOTENCY_KEY = "Idempotency-Key"
KEY_LIMIT = 255

IMAGE = "image"
"""The one input that comes in the body of a request."""


class Jobs:
    """Limits are in bytes: `image_limit` is for a body that may bring an image, where a model takes one, `lora_limit`
    for one that may bring LoRAs.

    A client that goes away changes nothing: a job lives in the log.
    """

    def __init__(self, client: Client, *, body_limit: int, image_limit: int, lora_limit: int) -> None:
        self._client = client
        self._body_limit = body_limit
        self._cards = {card.digest: card for card in client.models()}
        self._named = {card.name: card for card in self._cards.values()}
        cards = self._named.values()
        self._submit_limit = max(
            body_limit,
            image_limit if any(map(takes_image, cards)) else 0,
            lora_limit if any(map(takes_loras, cards)) else 0,
        )

    async def submit(self, request: Request) -> Response:
        """Accept a job; answered once it is durable. The same Idempotency-Key and body give the same job."""
        key = idempotency_key(request)
        asked = await body(request, requests.JobRequest, limit=self._submit_limit)
        loras, given = await anyio.to_thread.run_sync(self._given, asked)
        job = await self._client.submit(asked.generation(loras), key, given)
        return Json(self._shown(job), 202, {"location": present.location(job.id)})

    async def fork(self, request: Request) -> Response:
        """Make a new job out of a job's first steps; answered once it is durable, as a submitted one."""
        asked = await body(request, requests.Fork, limit=self._body_limit)
        changes = {name: value for name, value in structs.asdict(asked.set).items() if value is not UNSET}
        job = await self._client.fork(
            job_id(request), asked.at_step, RequestChanges(**changes), idempotency_key(request)
        )
        return Json(self._shown(job), 202, {"location": present.location(job.id)})

    async def list(self, request: Request) -> Response:
        """The jobs there are, newest first."""
        asked = query(request, requests.JobsQuery)
        if asked.after is not None:
            await self._check_cursor(asked.after)
        where = JobFilter(status=asked.status, model=asked.model)
        rows = await self._client.jobs(where, after=asked.after, limit=asked.limit + 1)
        data = [present.summary(row) for row in rows[: asked.limit]]
        return Json(schema.JobPage(data=data, has_more=len(rows) > asked.limit, last_id=data[-1].id if data else None))

    async def show(self, request: Request) -> Response:
        """One job as its log stands now."""
        return Json(self._shown(await self._client.job(job_id(request))))

    async def cancel(self, request: Request) -> Response:
        """Cancel a job. A running step ends first; what is finished stays as it is."""
        asked = job_id(request)
        outcome = await self._client.cancel(asked)
        return Json(schema.Cancellation(asked, outcome.value))

    async def purge(self, request: Request) -> Response:
        """Forget a job that has ended, and its log."""
        await self._client.purge(job_id(request))
        return Response(status_code=204)

    async def checkpoints(self, request: Request) -> Response:
        """Every completed step's tensors, by digest."""
        return Json([present.checkpoint(step) for step in await self._client.checkpoints(job_id(request))])

    def _given(self, asked: requests.JobRequest) -> tuple[tuple[Lora, ...], dict[str, Given]]:
        """What comes along. It may be large: not for the event loop. Raises InvalidRequest."""
        loras, given = read_loras(asked.loras)
        return loras, given | self._read_image(asked)

    def _read_image(self, asked: requests.JobRequest) -> dict[str, Given]:
        """One that the model does not take is not even decoded."""
        if asked.image is None or asked.model not in self._named:
            return {}
        if not takes_image(card := self._named[asked.model]):
            check_inputs((IMAGE,), card)
        return {IMAGE: picture(IMAGE, encoded(IMAGE, asked.image))}

    def _shown(self, job: Job) -> schema.Job:
        return present.job(job, self._cards, self._client.held_up(job))

    async def _check_cursor(self, after: str) -> None:
        """A cursor that is no job would give an empty page, and nobody would know why."""
        try:
            await self._client.job(checked_job_id(after))
        except JobNotFound as error:
            raise BadInput("after", f"{error}; give the last_id of a page, or leave it out") from error


def takes_image(card: ModelCard) -> bool:
    return card.inputs is not UNSET and IMAGE in card.inputs


def read_loras(files: Sequence[requests.LoraFile]) -> tuple[tuple[Lora, ...], dict[str, Given]]:
    """Raises InvalidRequest."""
    given = {f"{lora.INPUT}/{index}": lora.file(f"loras/{index}", one.data) for index, one in enumerate(files)}
    return tuple(Lora(one.ref.digest, file.strength) for one, file in zip(given.values(), files, strict=True)), given


def takes_loras(card: ModelCard) -> bool:
    return card.inputs is not UNSET and lora.INPUT in card.inputs


def idempotency_key(request: Request) -> str | None:
    """Raises BadInput."""
    key = request.headers.get(IDEMPOTENCY_KEY)
    if key is not None and not (0 < len(key) <= KEY_LIMIT and key.isascii() and key.isprintable()):
        raise BadInput(IDEMPOTENCY_KEY, f"must be 1 to {KEY_LIMIT} printable ASCII characters")
    return key
