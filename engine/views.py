"""What people see of a job: the public status and the row of the job list, derived from the fold, and its log."""

from typing import Literal

from msgspec import Struct

from cards.request import ResolvedRequest
from cards.wire import TensorRef
from engine import events as facts
from engine.events import JobEvent
from engine.job import Job, State
from store.journal import Event
from store.journal import JobFilter as JobFilter
from store.journal import JobRow as JobRow

Status = Literal["queued", "running", "paused", "quarantined", "completed", "failed", "cancelled", "moved"]

STATUS: dict[State, Status] = {
    State.QUEUED: "queued",
    State.RUNNING: "running",
    State.PAUSED: "paused",
    State.CANCELLING: "running",
    State.QUARANTINED: "quarantined",
    State.COMPLETED: "completed",
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
    State.MOVED: "moved",
}


def status(job: Job) -> Status:
    return STATUS[job.state]


def listed(job: Job) -> tuple[State, str | None, int, ResolvedRequest]:
    """What of a job makes a new row of the list when it changes."""
    return job.state, job.owner, job.attempt, job.request


def row(job: Job, at: float) -> JobRow:
    """`at` is the time of the last change of what is `listed`."""
    return JobRow(
        id=job.id,
        status=status(job),
        model=job.request.model,
        priority=job.request.priority,
        submitted_at=job.submitted_at,
        updated_at=at,
        open=job.open,
        owner=job.owner,
        attempts=job.attempt,
        metadata=job.request.metadata,
    )


class Told(Struct, frozen=True):
    """An event as people see it. `position` is its place in the log: what an SSE reader continues after."""

    position: int
    version: int
    at: float
    type: str
    event: JobEvent


class StepTensors(Struct, frozen=True):
    """What one completed step left, by content."""

    loop: str
    step: int
    tensors: dict[str, TensorRef]


def told(event: Event) -> Told:
    return Told(event.position, event.version, event.at, event.type, facts.decode(event))
