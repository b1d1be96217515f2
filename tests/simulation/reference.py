"""How a request ends when nothing goes wrong: its steps run one after the other on one executor, without an engine."""

from typing import Any

from msgspec import Struct

from cards.family import Family
from cards.wire import UnitId, WorkUnit
from engine import driver
from engine.events import JobAdmitted, JobSubmitted, StepCompleted
from engine.job import fold
from engine.needs import tensors
from ops.blobs import WorkerBlobs
from store.blobs import MemoryBlobs
from tests import toy
from workers.execute import Executor
from workers.loaded import load_models

Made = tuple[str, int, Any, Any, Any]


class Ending(Struct, frozen=True):
    """What each step makes, in order, and the kind of failure that the request itself brings about."""

    steps: list[Made]
    failure: str | None = None


_known: dict[tuple[Family, str, int, int, int], Ending] = {}


def ending(submitted: JobSubmitted, family: Family) -> Ending:
    request = submitted.request
    key = (family, request.prompt, request.steps, request.seed, request.preview_every)
    if key not in _known:
        _known[key] = _run(submitted, family)
    return _known[key]


def made(event: StepCompleted) -> Made:
    """All of a step that must be the same wherever and whenever it ran."""
    tensors = {name: (ref.digest, ref.shape, ref.strides) for name, ref in event.tensors.items()}
    artifacts = {ref.name: ref.digest for ref in event.artifacts}
    return event.node, event.step, tensors, artifacts, event.scalars


def _run(submitted: JobSubmitted, family: Family) -> Ending:
    executor = Executor(load_models({family.card.name: family}), WorkerBlobs(MemoryBlobs()))
    job = fold(fold(None, submitted), JobAdmitted(engine="alone"))
    turn = driver.resume(job, family, None)
    steps: list[Made] = []
    while turn.plan is not None and turn.state is not None:
        unit = WorkUnit(UnitId(job.id, 0, len(steps), 0), turn.plan, keep=tuple(tensors(job, turn.state)))
        try:
            result = executor.run(unit, []).result
        except toy.Died:
            return Ending(steps, "poisoned")
        if result.error is not None:
            return Ending(steps, result.error.kind)
        done = driver.completed(driver.node_of(job, family), turn.plan, result, "alone")
        turn = driver.fold_in(job, family, turn.state, done)
        steps.append(made(done))
        for event in (done, *turn.events):
            job = fold(job, event)
    return Ending(steps)
