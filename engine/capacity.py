"""What steps take, what workers have, and how much work waits: what a fleet is planned by."""

from msgspec import Struct

from cards.wire import Heartbeat
from engine.engine import Engine
from engine.scheduling import switching
from engine.scheduling.cost import StepKind


class StepCost(Struct, frozen=True, kw_only=True):
    """Seconds of a device. `careful_s` is what admission reckons with; without `samples` both are those of the first
    ones on their workers, or predicted where there are none.
    """

    kind: StepKind
    mean_s: float
    careful_s: float
    samples: int
    cold_s: float | None
    """The mean of the first ones on their workers."""


class ComponentCapacity(Struct, frozen=True, kw_only=True):
    """What it takes to have a component, `<model>/<component>`: seconds as the last time, or else as predicted."""

    name: str
    nbytes: int
    loading_s: float
    resident: bool


class WorkerCapacity(Struct, frozen=True, kw_only=True):
    id: str
    pool: str
    device: str
    memory_bytes: int
    reserved_bytes: int
    """For the weights in use, the tensors of the jobs at home there, and the steps that are with it."""
    jobs: int
    outstanding_s: float
    """What is left of the work that is with it, as predicted."""
    weights_bytes: int | None
    """How much of its weights is loaded at once; None where all may be."""
    components: tuple[ComponentCapacity, ...]


class Capacity(Struct, frozen=True, kw_only=True):
    """`waiting` are the steps of jobs that this engine drives for which there is no room yet. `waiting_s` is what they
    are expected to take, `left_s` what is left of their jobs.
    """

    costs: tuple[StepCost, ...]
    workers: tuple[WorkerCapacity, ...]
    waiting: int
    waiting_s: float
    left_s: float


def capacity(engine: Engine, now: float) -> Capacity:
    """`now` is on the monotonic clock."""
    waiting = engine.dispatcher.waiting()
    rooms = {room.worker: room for room in engine.dispatcher.rooms(now)}
    return Capacity(
        costs=tuple(
            StepCost(
                kind=kind,
                mean_s=figure.expected_s,
                careful_s=figure.careful_s,
                samples=figure.samples,
                cold_s=figure.cold_s if figure.cold else None,
            )
            for kind, figure in engine.accounts.costs.known()
        ),
        workers=tuple(
            WorkerCapacity(
                id=seat.worker,
                pool=seat.hello.pool,
                device=seat.device,
                memory_bytes=seat.hello.memory_bytes,
                reserved_bytes=seat.hello.memory_bytes - int(rooms[seat.worker].free_bytes),
                jobs=sum(rooms[seat.worker].jobs.values()),
                outstanding_s=max(0.0, rooms[seat.worker].queued_s),
                weights_bytes=None if seat.beat is None else seat.beat.weights_bytes,
                components=_components(seat.beat),
            )
            for seat in engine.fleet.seats.values()
        ),
        waiting=len(waiting),
        waiting_s=sum(ready.step_s for ready in waiting),
        left_s=sum(ready.left_s for ready in waiting),
    )


def _components(beat: Heartbeat | None) -> tuple[ComponentCapacity, ...]:
    if beat is None:
        return ()
    return tuple(
        ComponentCapacity(
            name=name,
            nbytes=one.nbytes,
            loading_s=switching.seconds(beat.weights, [name]),
            resident=name in beat.resident,
        )
        for name, one in beat.weights.items()
    )
