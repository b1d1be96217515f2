"""What a job's engine may decide, as events. Pure: each verb looks at the job and says what becomes true."""

from cards.card import Node
from engine.events import CancelRequested, JobCancelled, JobEvent, JobFailed, WorkerLost
from engine.job import Job, State


def cancel(job: Job, reason: str, *, running: bool) -> list[JobEvent]:
    """`running` says that a worker may still execute a step: the job is cancelled only once that one is done."""
    if job.terminal:
        return []
    asked: list[JobEvent] = [] if job.state is State.CANCELLING else [CancelRequested(reason=reason)]
    return asked if running else [*asked, JobCancelled()]


def fail(job: Job, node: Node, kind: str, message: str) -> list[JobEvent]:
    failed = JobFailed(kind=kind, message=message, node=node.name, step=job.place.step, attempt=job.attempt)
    return [failed] if job.state is State.RUNNING else []


def lose_worker(job: Job, node: Node, worker: str, reason: str, *, blamed: bool, max_deaths: int) -> list[JobEvent]:
    """The worker that had the job is gone: the job goes on elsewhere, unless it keeps bringing workers down."""
    lost = WorkerLost(worker=worker, reason=reason, blamed=blamed)
    if job.state is State.CANCELLING:
        return [lost, JobCancelled()]
    if job.deaths + blamed < max_deaths:
        return [lost]
    message = f"{job.deaths + 1} workers died running this step, the last one: {reason}"
    failed = JobFailed(kind="poisoned", message=message, node=node.name, step=job.place.step, attempt=job.attempt)
    return [lost, failed]
