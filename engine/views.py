"""What people see of a job: the public status, and the row of the job list. Both are derived from the fold."""

from typing import Literal

from engine.job import Job, State
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


def row(job: Job, at: float) -> JobRow:
    """`at` is the time of the job's last change that the list shows."""
    return JobRow(
        id=job.id,
        status=status(job),
        model=job.request.model,
        priority=job.request.priority,
        submitted_at=job.submitted_at,
        updated_at=at,
        open=job.open,
    )
