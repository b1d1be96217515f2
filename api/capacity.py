"""What steps take, what the workers have, and how much work waits, as a fleet is planned by it."""

from typing import Literal

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from api.answers import Json
from engine import capacity
from engine.client import Client
from engine.errors import StoreTrouble


class StepCost(Struct, frozen=True, kw_only=True):
    """Device seconds of steps that take as long as each other: the mean of what was timed, and the careful figure that
    admission reckons with. Without `samples` both are those of the first ones, or predicted where there are none.
    """

    model: str
    pool: str
    device: str
    loop: str
    kind: str
    shape: str
    """Size and frames, as 832x480x81."""
    precision: str
    policy: str
    """Of guidance, and the interceptors."""
    batch: int
    """Steps that are executed together; the seconds are those of all of them."""
    seconds: float
    careful_seconds: float
    samples: int
    cold_seconds: float | None
    """The mean of the first ones on their workers, which are no samples."""


class ComponentCapacity(Struct, frozen=True, kw_only=True):
    """Of a model, `<model>/<component>`: whether it is loaded, and what that takes, as last time or as predicted."""

    name: str
    bytes: int
    loading_seconds: float
    resident: bool


class WorkerCapacity(Struct, frozen=True, kw_only=True):
    """Reserved is what the weights in use, the jobs at home there and the steps with it take, as predicted. Of its
    weights `weights_bytes` are loaded at once; all where that is null.
    """

    id: str
    pool: str
    device: str
    memory_bytes: int
    reserved_bytes: int
    jobs: int
    outstanding_seconds: float
    weights_bytes: int | None
    components: list[ComponentCapacity]


class Queue(Struct, frozen=True, kw_only=True):
    """All jobs of the log that are queued or running, on whichever engine (null while the store is away); and of those
    that this one drives, the steps that wait for room on a worker: the device seconds that they are expected to take,
    and those of all that is left of their jobs.
    """

    jobs: int | None
    steps: int
    seconds: float
    job_seconds: float


class Capacity(Struct, frozen=True, kw_only=True):
    object: Literal["capacity"] = "capacity"
    steps: list[StepCost]
    workers: list[WorkerCapacity]
    queue: Queue


class CapacityStatus:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def show(self, request: Request) -> Response:
        """What steps take, what the workers have, and how much work waits."""
        try:
            open_jobs = await self._client.open_jobs()
        except StoreTrouble:  # all else is known, and wanted just then
            open_jobs = None
        return Json(_shown(self._client.capacity(), open_jobs))


def _shown(seen: capacity.Capacity, open_jobs: int | None) -> Capacity:
    return Capacity(
        steps=[_cost(cost) for cost in seen.costs],
        workers=[
            WorkerCapacity(
                id=worker.id,
                pool=worker.pool,
                device=worker.device,
                memory_bytes=worker.memory_bytes,
                reserved_bytes=worker.reserved_bytes,
                jobs=worker.jobs,
                outstanding_seconds=worker.outstanding_s,
                weights_bytes=worker.weights_bytes,
                components=[_component(one) for one in worker.components],
            )
            for worker in seen.workers
        ],
        queue=Queue(jobs=open_jobs, steps=seen.waiting, seconds=seen.waiting_s, job_seconds=seen.left_s),
    )


def _cost(cost: capacity.StepCost) -> StepCost:
    kind = cost.kind
    return StepCost(
        model=kind.model.name,
        pool=kind.pool,
        device=kind.device,
        loop=kind.loop,
        kind=kind.kind,
        shape=kind.shape,
        precision=kind.precision,
        policy=kind.policy,
        batch=kind.batch,
        seconds=cost.mean_s,
        careful_seconds=cost.careful_s,
        samples=cost.samples,
        cold_seconds=cost.cold_s,
    )


def _component(one: capacity.ComponentCapacity) -> ComponentCapacity:
    return ComponentCapacity(name=one.name, bytes=one.nbytes, loading_seconds=one.loading_s, resident=one.resident)
