"""The HTTP app: its parts built, its routes in one list."""

from collections.abc import Callable

from msgspec import Struct
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from api import errors, requests, schema
from api.answers import Json
from api.artifacts import Artifacts
from api.capacity import Capacity, CapacityStatus
from api.events import LAST_EVENT_ID, Events
from api.ids import RequestIds
from api.jobs import IDEMPOTENCY_KEY, Jobs
from api.metrics import Measured, Metrics
from api.openapi import Answer, Endpoint, Operation, document
from api.status import EngineStatus
from api.upkeep import Upkeep
from api.verbs import Verbs
from api.workers import Workers
from engine.client import Client
from engine.clock import Clock


def build_app(
    client: Client,
    *,
    version: str,
    clock: Clock,
    ids: Callable[[], str],
    body_limit: int = 256 * 1024,
    image_limit: int = 32 * 1024 * 1024,
    lora_limit: int = 1 << 29,
    heartbeat_s: float = 10.0,
) -> Starlette:
    """`ids` names requests; limits are in bytes, `image_limit` and `lora_limit` those of a job's body where a model
    takes an image or LoRAs.

    A silent event stream gives a sign every `heartbeat_s`.
    """
    metrics = Metrics(client, clock)
    operations = [
        *_jobs(Jobs(client, body_limit=body_limit, image_limit=image_limit, lora_limit=lora_limit)),
        *_verbs(Verbs(client, body_limit=body_limit)),
        *_outputs(Events(client, heartbeat_s=heartbeat_s), Artifacts(client)),
        *_upkeep(Upkeep(client, body_limit=body_limit)),
        *_workers(Workers(client, body_limit=body_limit)),
        *_engine(EngineStatus(client), CapacityStatus(client), metrics),
    ]
    operations.append(_get("/openapi.json", _describe(operations, version), {200: Answer(dict)}))  # tells of itself too
    app = Starlette(
        routes=[operation.route() for operation in operations],
        middleware=[Middleware(RequestIds, ids=ids), Middleware(Measured, metrics=metrics)],
        exception_handlers=errors.handlers(),
    )
    app.router.redirect_slashes = False  # one name a resource; a POST must not be sent twice
    return app


def _jobs(jobs: Jobs) -> list[Operation]:
    return [
        Operation(
            method="POST",
            path="/v1/jobs",
            endpoint=jobs.submit,
            body=requests.JobRequest,
            headers=(IDEMPOTENCY_KEY,),
            answers={202: Answer(schema.Job)},
        ),
        Operation(
            method="GET",
            path="/v1/jobs",
            endpoint=jobs.list,
            query=requests.JobsQuery,
            answers={200: Answer(schema.JobPage)},
        ),
        _get("/v1/jobs/{job}", jobs.show, {200: Answer(schema.Job)}),
        Operation(method="DELETE", path="/v1/jobs/{job}", endpoint=jobs.purge, answers={204: Answer()}),
        Operation(
            method="POST",
            path="/v1/jobs/{job}/cancel",
            endpoint=jobs.cancel,
            answers={200: Answer(schema.Cancellation)},
        ),
        Operation(
            method="POST",
            path="/v1/jobs/{job}/fork",
            endpoint=jobs.fork,
            body=requests.Fork,
            headers=(IDEMPOTENCY_KEY,),
            answers={202: Answer(schema.Job)},
        ),
        _get("/v1/jobs/{job}/checkpoints", jobs.checkpoints, {200: Answer(list[schema.Checkpoint])}),
    ]


def _verbs(verbs: Verbs) -> list[Operation]:
    told = {200: Answer(schema.Operated)}
    return [
        _post("/v1/jobs/{job}/pause", verbs.pause, told, requests.Because),
        _post("/v1/jobs/{job}/resume", verbs.resume, told),
        _post("/v1/jobs/{job}/retry", verbs.retry, told, requests.Because),
        _post("/v1/jobs/{job}/terminate", verbs.terminate, told, requests.Because),
        _post("/v1/jobs/{job}/quarantine", verbs.quarantine, told, requests.Because),
        _post("/v1/jobs/{job}/release", verbs.release, told),
        _post("/v1/jobs/{job}/rewind", verbs.rewind, told, requests.Rewind),
        _post("/v1/jobs/{job}/pin", verbs.pin, told, requests.Pin),
        _post("/v1/jobs/{job}/unpin", verbs.unpin, told, requests.Unpin),
        _post("/v1/jobs/{job}/migrate", verbs.migrate, {200: Answer(schema.Migration)}, requests.Move),
    ]


def _upkeep(upkeep: Upkeep) -> list[Operation]:
    return [
        _post("/v1/bundles", upkeep.take_in, {201: Answer(schema.Accepted)}),
        _post("/v1/jobs/{job}/moved", upkeep.move_away, {200: Answer(schema.Operated)}, requests.MovedAway),
        _post("/v1/gc", upkeep.collect, {200: Answer(schema.Collected)}, requests.Collect),
    ]


def _workers(workers: Workers) -> list[Operation]:
    return [
        _get("/v1/workers", workers.list, {200: Answer(schema.WorkerList)}),
        _post("/v1/workers/{worker}/drain", workers.drain, {202: Answer(schema.Dismissal)}),
        _post("/v1/workers/{worker}/fence", workers.fence, {200: Answer(schema.Dismissal)}, requests.Because),
        _post("/v1/workers/{worker}/sleep", workers.sleep, {202: Answer(schema.Rest)}, requests.Components),
        _post("/v1/workers/{worker}/wake", workers.wake, {202: Answer(schema.Rest)}, requests.Components),
    ]


def _outputs(events: Events, artifacts: Artifacts) -> list[Operation]:
    return [
        Operation(
            method="GET",
            path="/v1/jobs/{job}/events",
            endpoint=events.read,
            query=requests.EventsQuery,
            headers=(LAST_EVENT_ID,),
            answers={200: Answer(schema.EventPage, ("text/event-stream",)), 204: Answer()},
        ),
        Operation(
            method="GET",
            path="/v1/jobs/{job}/artifacts/{name}",
            endpoint=artifacts.fetch,
            headers=("Range", "If-Range", "If-None-Match"),
            answers={200: Answer(media=("*/*",)), 206: Answer(media=("*/*",)), 304: Answer()},
        ),
    ]


def _engine(status: EngineStatus, capacity: CapacityStatus, metrics: Metrics) -> list[Operation]:
    return [
        _get("/v1/models", status.models, {200: Answer(schema.ModelList)}),
        _get("/v1/capacity", capacity.show, {200: Answer(Capacity)}),
        _get("/livez", status.live, {200: Answer(schema.Live)}),
        _get("/readyz", status.ready, {200: Answer(schema.Ready), 503: Answer(schema.Ready)}),
        _get("/metrics", metrics.show, {200: Answer(media=("text/plain",))}),
    ]


def _post(path: str, endpoint: Endpoint, answers: dict[int, Answer], body: type[Struct] | None = None) -> Operation:
    return Operation(method="POST", path=path, endpoint=endpoint, answers=answers, body=body)


def _get(path: str, endpoint: Endpoint, answers: dict[int, Answer]) -> Operation:
    return Operation(method="GET", path=path, endpoint=endpoint, answers=answers)


def _describe(operations: list[Operation], version: str) -> Endpoint:
    async def describe(request: Request) -> Response:
        """This interface as an OpenAPI document."""
        return Json(document(operations, version))

    return describe
