"""A job: its states, the moves between them, and the fold of its events. Pure; the only place where a job changes."""

from enum import StrEnum
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from cards.card import REQUEST
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
    JobForked,
    JobImported,
    JobMigrated,
    JobMovedAway,
    JobPaused,
    JobQuarantined,
    JobRecovered,
    JobReleased,
    JobResumed,
    JobRetried,
    JobRewound,
    JobSubmitted,
    JobTerminated,
    NodeCompleted,
    NodeStarted,
    NoticeGiven,
    NumericsChanged,
    QuarantineLifted,
    RequestChanged,
    Stage,
    StepCompleted,
    StepPinned,
    StepUnpinned,
    WorkerLost,
    tag,
)
from engine.events import Place as Place


class State(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    QUARANTINED = "quarantined"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    MOVED = "moved"


TERMINAL = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED, State.MOVED})
OPEN = frozenset({State.QUEUED, State.RUNNING, State.CANCELLING})
"""An engine has work to do on it."""

# Every legal move. What is not here is refused; docs/lifecycle.md is drawn from this table.
NEXT: dict[State, dict[type[JobEvent], State]] = {
    State.QUEUED: {
        NoticeGiven: State.QUEUED,
        JobForked: State.QUEUED,
        JobImported: State.QUEUED,
        JobMigrated: State.QUEUED,
        JobReleased: State.QUEUED,
        JobRewound: State.QUEUED,
        JobAdmitted: State.RUNNING,
        JobRecovered: State.RUNNING,
        JobPaused: State.PAUSED,
        JobQuarantined: State.QUARANTINED,
        CancelRequested: State.CANCELLING,
        JobTerminated: State.CANCELLED,
        JobMovedAway: State.MOVED,
        StepPinned: State.QUEUED,
        StepUnpinned: State.QUEUED,
    },
    State.RUNNING: {
        JobRecovered: State.RUNNING,
        JobReleased: State.QUEUED,
        JobImported: State.QUEUED,
        JobRewound: State.QUEUED,
        NodeStarted: State.RUNNING,
        StepCompleted: State.RUNNING,
        NodeCompleted: State.RUNNING,
        NumericsChanged: State.RUNNING,
        RequestChanged: State.RUNNING,
        WorkerLost: State.RUNNING,
        JobMigrated: State.RUNNING,
        JobPaused: State.PAUSED,
        JobQuarantined: State.QUARANTINED,
        CancelRequested: State.CANCELLING,
        JobTerminated: State.CANCELLED,
        JobCompleted: State.COMPLETED,
        JobFailed: State.FAILED,
        StepPinned: State.RUNNING,
        StepUnpinned: State.RUNNING,
    },
    State.PAUSED: {
        NodeStarted: State.PAUSED,
        StepCompleted: State.PAUSED,
        NodeCompleted: State.PAUSED,
        NumericsChanged: State.PAUSED,
        WorkerLost: State.PAUSED,
        JobMigrated: State.PAUSED,
        JobRewound: State.PAUSED,
        JobImported: State.PAUSED,
        JobResumed: State.QUEUED,
        JobQuarantined: State.QUARANTINED,
        CancelRequested: State.CANCELLING,
        JobTerminated: State.CANCELLED,
        JobCompleted: State.COMPLETED,
        JobFailed: State.FAILED,
        JobMovedAway: State.MOVED,
        StepPinned: State.PAUSED,
        StepUnpinned: State.PAUSED,
    },
    State.CANCELLING: {
        JobRecovered: State.CANCELLING,
        WorkerLost: State.CANCELLING,
        JobCancelled: State.CANCELLED,
        JobTerminated: State.CANCELLED,
        StepPinned: State.CANCELLING,
        StepUnpinned: State.CANCELLING,
    },
    State.QUARANTINED: {
        JobMigrated: State.QUARANTINED,
        JobRewound: State.QUARANTINED,
        JobImported: State.QUARANTINED,
        QuarantineLifted: State.QUEUED,
        CancelRequested: State.CANCELLING,
        JobTerminated: State.CANCELLED,
        JobMovedAway: State.MOVED,
        StepPinned: State.QUARANTINED,
        StepUnpinned: State.QUARANTINED,
    },
    State.COMPLETED: {StepPinned: State.COMPLETED, StepUnpinned: State.COMPLETED},
    State.FAILED: {
        JobRetried: State.QUEUED,
        JobRewound: State.QUEUED,
        JobQuarantined: State.QUARANTINED,
        StepPinned: State.FAILED,
        StepUnpinned: State.FAILED,
    },
    State.CANCELLED: {
        JobRetried: State.QUEUED,
        JobRewound: State.QUEUED,
        StepPinned: State.CANCELLED,
        StepUnpinned: State.CANCELLED,
    },
    State.MOVED: {},
}


class Failure(Struct, frozen=True):
    kind: str
    message: str
    node: str
    step: int
    attempt: int


class Parent(Struct, frozen=True):
    """The job whose first steps a fork shares."""

    job: str
    at_step: int


class Job(Struct, frozen=True, kw_only=True):
    """What a job's log says so far. Its size does not grow with the number of steps."""

    id: str
    state: State
    request: ResolvedRequest
    model: ModelIdentity
    submitted_at: float
    admitted: bool = False
    place: Place = Place()
    route: tuple[Stage, ...] = ()
    """The nodes to go to after this one, where a changed request has made it go back; then the program's order."""
    outputs: dict[str, TensorRef] = {}
    artifacts: dict[str, ArtifactRef] = {}
    notices: tuple[NoticeGiven, ...] = ()
    deaths: int = 0
    """Workers that died running this job since it last completed a step."""
    deaths_in_all: int = 0
    """And since somebody last had it begin again."""
    attempt: int = 1
    fingerprint: str | None = None
    exact: bool = True
    """Whether all steps ran under one numerics fingerprint, and the request asks for no interceptor."""
    failure: Failure | None = None
    reason: str = ""
    """Why it is paused or in quarantine, in the words of whoever wanted that."""
    parent: Parent | None = None
    pool: str | None = None
    """The only workers that may run it, if that was asked for."""
    owner: str | None = None
    """The engine that drives it, or the one that it has been sent to."""
    pins: tuple[int, ...] = ()
    """After how many steps of its program it can be gone on from, whatever retention lets go of."""

    @property
    def lasting(self) -> tuple[str, ...]:
        """The digests of what stays for as long as the job does: what it was given, and its artifacts."""
        given = (ref.digest for name, ref in self.outputs.items() if name.startswith(f"{REQUEST}."))
        return (*given, *(ref.digest for ref in self.artifacts.values()))

    @property
    def terminal(self) -> bool:
        return self.state in TERMINAL

    @property
    def open(self) -> bool:
        return self.state in OPEN


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
            exact=not event.request.interceptors,
            outputs={f"{REQUEST}.{name}": ref for name, ref in event.inputs.items()},
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
            return _completed_node(job, event)
        case NumericsChanged():
            same = job.fingerprint in (None, event.fingerprint)
            return replace(job, fingerprint=event.fingerprint, exact=job.exact and same)
        case WorkerLost():
            return _lost_worker(job, event)
        case JobFailed():
            failure = Failure(event.kind, event.message, event.node, event.step, event.attempt)
            return replace(job, failure=failure, owner=None)
        case JobPaused() | JobQuarantined():
            return replace(job, reason=event.reason, owner=None)
        case JobResumed():
            return replace(job, reason="")
        case QuarantineLifted():
            return replace(job, reason="", failure=None, deaths=0, deaths_in_all=0)
        case JobRetried():
            return replace(job, failure=None, deaths=0, deaths_in_all=0)
        case JobForked():
            return replace(job, parent=Parent(event.parent, event.at_step))
        case RequestChanged():
            here, *route = event.route
            return replace(
                job, request=event.request, notices=event.notices, place=here.place, route=tuple(route), deaths=0
            )
        case JobRewound():
            return _rewound(job, event)
        case StepPinned():
            return replace(job, pins=tuple(sorted({*job.pins, event.step})))
        case StepUnpinned():
            return replace(job, pins=tuple(step for step in job.pins if step != event.step))
        case JobMigrated():
            return replace(job, pool=event.pool or job.pool, owner=event.engine or job.owner)
        case JobImported():
            return replace(job, owner=None, pool=None)
        case JobReleased() | JobCancelled() | JobTerminated() | JobCompleted() | JobMovedAway():
            return replace(job, owner=None)
        case CancelRequested():
            return job
        case JobSubmitted():
            raise AssertionError("folded above")
        case _:
            assert_never(event)


def _lost_worker(job: Job, event: WorkerLost) -> Job:
    in_all = job.deaths_in_all + event.blamed
    return replace(job, deaths=job.deaths + event.blamed, deaths_in_all=in_all, attempt=job.attempt + 1)


def _completed_step(job: Job, event: StepCompleted) -> Job:
    return replace(
        job,
        place=replace(job.place, step=event.step + 1),
        artifacts={**job.artifacts, **{ref.name: ref for ref in event.artifacts}},
        deaths=0,
    )


def _completed_node(job: Job, event: NodeCompleted) -> Job:
    """On to the next node. One that has run again leaves nothing of what it made before."""
    kept = {name: ref for name, ref in job.outputs.items() if not name.startswith(f"{event.node}.")}
    made = {f"{event.node}.{name}": ref for name, ref in event.outputs.items()}
    place = job.route[0].place if job.route else Place(index=job.place.index + 1)
    return replace(job, place=place, route=job.route[1:], outputs=kept | made)


def _rewound(job: Job, event: JobRewound) -> Job:
    then = event.standing
    return replace(
        job,
        place=then.place,
        route=then.route,
        request=then.request,
        notices=then.notices,
        outputs=then.outputs,
        artifacts=then.artifacts,
        fingerprint=then.fingerprint,
        exact=then.exact,
        pins=tuple(step for step in job.pins if step <= event.to_step),
        owner=None,
        failure=None,
        deaths=0,
        deaths_in_all=0,
    )
