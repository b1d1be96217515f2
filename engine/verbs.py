"""What a job's engine may decide, as events. Pure: each verb looks at the job and says what becomes true.

People's verbs raise NotAllowed where the job's state forbids them, and decide nothing where it is so already.
"""

from cards.card import Node
from engine.errors import NotAllowed
from engine.events import (
    CancelRequested,
    JobAdmitted,
    JobCancelled,
    JobEvent,
    JobFailed,
    JobMigrated,
    JobMovedAway,
    JobPaused,
    JobQuarantined,
    JobRecovered,
    JobReleased,
    JobResumed,
    JobRetried,
    JobRewound,
    JobTerminated,
    QuarantineLifted,
    Standing,
    StepPinned,
    StepUnpinned,
    WorkerLost,
)
from engine.job import TERMINAL, Job, State, fold

_LIVE = frozenset({State.QUEUED, State.RUNNING})
_ENDED_BADLY = frozenset({State.FAILED, State.CANCELLED})
_ALL = frozenset(State)

IN_ALL = 3
"""A job may bring down so many times as many workers in all as it may without completing a step."""

# Where each of people's verbs does something.
ALLOWED: dict[str, frozenset[State]] = {
    "pause": _LIVE,
    "resume": frozenset({State.PAUSED}),
    "retry": _ENDED_BADLY,
    "cancel": _ALL - TERMINAL - {State.CANCELLING},
    "terminate": _ALL - TERMINAL,
    "quarantine": _LIVE | {State.PAUSED, State.FAILED},
    "release": frozenset({State.QUARANTINED}),
    "rewind": _ALL - {State.COMPLETED, State.MOVED},
    "migrate": _LIVE | {State.PAUSED, State.QUARANTINED},
    "fork": _ALL,
    "pin": _ALL - {State.MOVED},
    "unpin": _ALL - {State.MOVED},
    "move away": frozenset({State.QUEUED, State.PAUSED, State.QUARANTINED}),
    "purge": TERMINAL,
}

# Where what a verb wants is so already: it decides nothing, and is no error.
SO_ALREADY: dict[str, frozenset[State]] = {
    "pause": frozenset({State.PAUSED}),
    "resume": _LIVE,
    "retry": _LIVE,
    "terminate": TERMINAL,
    "quarantine": frozenset({State.QUARANTINED}),
    "release": _LIVE,
    "move away": frozenset({State.MOVED}),
}


def _wanted(verb: str, job: Job) -> bool:
    """Whether the verb has something to do. Raises NotAllowed."""
    if job.state in SO_ALREADY.get(verb, ()):
        return False
    check(verb, job)
    return True


def check(verb: str, job: Job) -> None:
    """Raises NotAllowed."""
    if job.state not in ALLOWED[verb]:
        possible = [name for name, states in ALLOWED.items() if job.state in states]
        raise NotAllowed(job.id, verb, job.state, possible)


# -- people's verbs -----------------------------------------------------------------------------------------------


def pause(job: Job, reason: str) -> list[JobEvent]:
    return [JobPaused(reason=reason)] if _wanted("pause", job) else []


def resume(job: Job) -> list[JobEvent]:
    return [JobResumed()] if _wanted("resume", job) else []


def retry(job: Job, reason: str) -> list[JobEvent]:
    return [JobRetried(reason=reason)] if _wanted("retry", job) else []


def terminate(job: Job, reason: str) -> list[JobEvent]:
    return [JobTerminated(reason=reason)] if _wanted("terminate", job) else []


def quarantine(job: Job, reason: str) -> list[JobEvent]:
    return [JobQuarantined(reason=reason)] if _wanted("quarantine", job) else []


def lift(job: Job) -> list[JobEvent]:
    return [QuarantineLifted()] if _wanted("release", job) else []


def rewind(job: Job, to_step: int, standing: Standing, reason: str) -> list[JobEvent]:
    check("rewind", job)
    rewound = JobRewound(to_step=to_step, standing=standing, reason=reason)
    return [JobTerminated(reason="rewound"), rewound] if job.state is State.CANCELLING else [rewound]


def pin(job: Job, step: int, reason: str, *, driven: bool) -> list[JobEvent]:
    check("pin", job)
    return [] if step in job.pins else _in_passing(job, StepPinned(step=step, reason=reason), driven=driven)


def unpin(job: Job, step: int, *, driven: bool) -> list[JobEvent]:
    check("unpin", job)
    return _in_passing(job, StepUnpinned(step=step), driven=driven) if step in job.pins else []


def _in_passing(job: Job, event: JobEvent, *, driven: bool) -> list[JobEvent]:
    """What changes nothing of a job's course. Who writes it has the log from then on: one that ran, and is not `driven`
    here, goes on once somebody has claimed it, and a cancel that nobody is at is done.
    """
    if driven or job.state not in (State.RUNNING, State.CANCELLING):
        return [event]
    return [event, JobCancelled()] if job.state is State.CANCELLING else [JobReleased(engine=job.owner or ""), event]


def move_away(job: Job, to: str) -> list[JobEvent]:
    """Only of a job of which nothing runs: what its log says now is all that goes on elsewhere."""
    return [JobMovedAway(to=to)] if _wanted("move away", job) else []


def migrate(job: Job, pool: str | None, engine: str | None, reason: str, *, driven: bool) -> list[JobEvent]:
    """To a pool of this engine, or out of the hands of the engine that has it into those of another.

    One that runs, and is not `driven` here, goes on once somebody has claimed it: whoever had it can write no more.
    """
    check("migrate", job)
    if (pool, engine) in ((job.pool, None), (None, job.owner)):
        return []
    migrated = JobMigrated(pool=pool, engine=engine, reason=reason)
    leaves = job.state is State.RUNNING and (engine is not None or not driven)
    return [JobReleased(engine=job.owner or ""), migrated] if leaves else [migrated]


def cancel(job: Job, reason: str, *, running: bool) -> list[JobEvent]:
    """`running` says that a worker may still execute a step: the job is cancelled only once that one is done."""
    if job.terminal:
        return []
    asked: list[JobEvent] = [] if job.state is State.CANCELLING else [CancelRequested(reason=reason)]
    return asked if running else [*asked, JobCancelled()]


# -- what an engine finds out ---------------------------------------------------------------------------------------


def take(job: Job, node: Node, engine: str) -> JobEvent:
    """An engine takes a job: for the first time, or over from its log."""
    if not job.admitted:
        return JobAdmitted(engine=engine)
    return JobRecovered(engine=engine, node=node.name, step=job.place.step)


def hand_on(job: Job, engine: str) -> list[JobEvent]:
    """An engine has a job, or was given it, and cannot run it: it is anyone's. A cancel needs nobody who can."""
    return [JobCancelled()] if job.state is State.CANCELLING else [JobReleased(engine=engine)]


def fail(job: Job, node: Node, kind: str, message: str) -> list[JobEvent]:
    failed = JobFailed(kind=kind, message=message, node=node.name, step=job.place.step, attempt=job.attempt)
    return [failed] if job.state in (State.RUNNING, State.PAUSED) else []


def is_poison(job: Job, max_deaths: int) -> bool:
    """Whether too many workers died running it, without a step in between or with as many steps as it likes."""
    return job.deaths >= max_deaths or job.deaths_in_all >= IN_ALL * max_deaths


def lose_worker(job: Job, node: Node, worker: str, reason: str, *, blamed: bool, max_deaths: int) -> list[JobEvent]:
    """The worker that had the job is gone: the job goes on elsewhere, unless it keeps bringing workers down."""
    lost = WorkerLost(worker=worker, reason=reason, blamed=blamed)
    if job.state is State.CANCELLING:
        return [lost, JobCancelled()]
    after = fold(job, lost)
    if not (blamed and is_poison(after, max_deaths)):
        return [lost]
    counts = f"{after.deaths} at this step and {after.deaths_in_all} in all"
    message = f"workers died running this job, {counts}, the last one: {reason}"
    failed = JobFailed(kind="poisoned", message=message, node=node.name, step=job.place.step, attempt=job.attempt)
    return [lost, failed]
