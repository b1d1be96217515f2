"""A job: its states, the moves between them, and the fold of its events. Pure; the only place where a job changes."""

from enum import StrEnum
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from cards.request import ResolvedRequest
from cards.wire import ArtifactRef, ModelIdentity, TensorRef
from engine.errors import IllegalMove
from engine.events import (
    CancelRequested,
    JobAdmitted,
    JobCancelled,
    JobCompleted,
    JobEvent,
    JobFailed,
    JobRecovered,
    JobReleased,
    JobSubmitted,
    NodeCompleted,
    NodeStarted,
    NoticeGiven,
    NumericsChanged,
    StepCompleted,
    WorkerLost,
    tag,
)


class State(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})

# Every legal move. What is not here is refused; docs/lifecycle.md is drawn from this table.
NEXT: dict[State, dict[type[JobEvent], State]] = {
    State.QUEUED: {
        NoticeGiven: State.QUEUED,
        JobAdmitted: State.RUNNING,
        JobRecovered: State.RUNNING,
        CancelRequested: State.CANCELLING,
    },
    State.RUNNING: {
        JobRecovered: State.RUNNING,
        JobReleased: State.QUEUED,
        NodeStarted: State.RUNNING,
        StepCompleted: State.RUNNING,
        NodeCompleted: State.RUNNING,
        NumericsChanged: State.RUNNING,
        WorkerLost: State.RUNNING,
        CancelRequested: State.CANCELLING,
        JobCompleted: State.COMPLETED,
        JobFailed: State.FAILED,
    },
    State.CANCELLING: {
        JobRecovered: State.CANCELLING,
        WorkerLost: State.CANCELLING,
        JobCancelled: State.CANCELLED,
    },
    State.COMPLETED: {},
    State.FAILED: {},
    State.CANCELLED: {},
}


class Failure(Struct, frozen=True):
    kind: str
    message: str
    node: str
    step: int
    attempt: int


class Place(Struct, frozen=True):
    """Where in its program a job is: `step` steps of the `index`-th node are done. `started` once that node is."""

    index: int = 0
    step: int = 0
    steps: int = 0
    started: bool = False


class Job(Struct, frozen=True, kw_only=True):
    """What a job's log says so far. Its size does not grow with the number of steps."""

    id: str
    state: State
    request: ResolvedRequest
    model: ModelIdentity
    submitted_at: float
    admitted: bool = False
    owner: str | None = None
    """The engine that drives it, or is to."""
    place: Place = Place()
    outputs: dict[str, TensorRef] = {}
    artifacts: dict[str, ArtifactRef] = {}
    notices: tuple[NoticeGiven, ...] = ()
    deaths: int = 0
    """Workers that died running this job since it last completed a step."""
    attempt: int = 1
    fingerprint: str | None = None
    exact: bool = True
    """Whether all steps ran under one numerics fingerprint."""
    failure: Failure | None = None

    @property
    def terminal(self) -> bool:
        return self.state in TERMINAL


def move(state: State, event: JobEvent) -> State:
    """Raises IllegalMove."""
    if type(event) not in NEXT[state]:
        raise IllegalMove(state, tag(event))
    return NEXT[state][type(event)]


def fold(job: Job | None, event: JobEvent) -> Job:
    """Raises IllegalMove for an event that this job cannot have; total otherwise."""
    if isinstance(event, JobSubmitted):
        if job is not None:
            raise IllegalMove(job.state, tag(event))
        return Job(
            id=event.job,
            state=State.QUEUED,
            request=event.request,
            model=event.model,
            submitted_at=event.submitted_at,
        )
    if job is None:
        raise IllegalMove("not submitted", tag(event))
    return _apply(replace(job, state=move(job.state, event)), event)


def _apply(job: Job, event: JobEvent) -> Job:  # noqa: C901 - a table
    match event:
        case NoticeGiven():
            return replace(job, notices=(*job.notices, event))
        case JobAdmitted():
            return replace(job, admitted=True, owner=event.engine)
        case JobRecovered():
            return replace(job, admitted=True, owner=event.engine, attempt=job.attempt + 1)
        case NodeStarted():
            return replace(job, place=replace(job.place, steps=event.steps, started=True))
        case StepCompleted():
            return _completed_step(job, event)
        case NodeCompleted():
            made = {f"{event.node}.{name}": ref for name, ref in event.outputs.items()}
            return replace(job, place=Place(index=job.place.index + 1), outputs={**job.outputs, **made})
        case NumericsChanged():
            same = job.fingerprint in (None, event.fingerprint)
            return replace(job, fingerprint=event.fingerprint, exact=job.exact and same)
        case WorkerLost():
            return replace(job, deaths=job.deaths + event.blamed, attempt=job.attempt + 1)
        case JobFailed():
            failure = Failure(event.kind, event.message, event.node, event.step, event.attempt)
            return replace(job, failure=failure, owner=None)
        case JobReleased() | JobCancelled() | JobCompleted():
            return replace(job, owner=None)
        case CancelRequested():
            return job
        case JobSubmitted():
            raise AssertionError("folded above")
        case _:
            assert_never(event)


def _completed_step(job: Job, event: StepCompleted) -> Job:
    return replace(
        job,
        place=replace(job.place, step=event.step + 1),
        artifacts={**job.artifacts, **{ref.name: ref for ref in event.artifacts}},
        deaths=0,
    )
