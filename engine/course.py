"""The course of a job: what its steps have made of it, as its log now stands, and the job as it was after any of them.

Pure. Steps are counted over the whole program, in the order in which they were completed; what a rewind took back is
not in the course. Nothing is executed: the loops are led through the results that the log has.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from msgspec import Struct

from cards.family import Family
from cards.loop import LoopState
from cards.wire import Refold
from engine import driver
from engine.events import (
    JobAdmitted,
    JobEvent,
    JobRewound,
    NodeCompleted,
    NodeStarted,
    NoticeGiven,
    NumericsChanged,
    RequestChanged,
    Standing,
    StepCompleted,
)
from engine.job import Job, fold
from engine.needs import grown, useful

_COURSE = (NodeStarted, StepCompleted, NodeCompleted, NumericsChanged, RequestChanged)


class Walked(Struct, frozen=True):
    """A job while it runs, the state of its loop (None before its node begins), and what makes its tensors again."""

    job: Job
    state: LoopState | None
    refolds: tuple[Refold, ...] = ()

    @property
    def standing(self) -> Standing:
        job = self.job
        return Standing(
            place=job.place,
            route=job.route,
            state=self.state,
            request=job.request,
            notices=job.notices,
            outputs=job.outputs,
            artifacts=job.artifacts,
            fingerprint=job.fingerprint,
            exact=job.exact,
            refolds=useful(self.refolds, job, self.state),
        )


def course(history: Iterable[JobEvent]) -> list[JobEvent]:
    """What counts of a log today."""
    events: list[JobEvent] = []
    for event in history:
        if isinstance(event, JobRewound):
            events = up_to(events, event.to_step)
        elif isinstance(event, _COURSE):
            events.append(event)
    return events


def steps(events: Iterable[JobEvent]) -> list[StepCompleted]:
    return [event for event in events if isinstance(event, StepCompleted)]


def up_to(events: Sequence[JobEvent], step: int) -> list[JobEvent]:
    """The part of a course that follows from its first `step` steps; the numerics of the next are not of it."""
    done = [n for n, event in enumerate(events, start=1) if isinstance(event, StepCompleted)]
    end = done[step - 1] if step else 0
    rest = takewhile(lambda event: not isinstance(event, StepCompleted), events[end:])
    return [*events[:end], *(event for event in rest if not isinstance(event, NumericsChanged))]


def opening(history: Sequence[JobEvent]) -> list[JobEvent]:
    """How a log begins: the submission and the notices that came with it."""
    return [history[0], *takewhile(lambda event: isinstance(event, NoticeGiven), history[1:])]


def walk(history: Sequence[JobEvent], family: Family) -> Iterator[Walked]:
    """The job before each of its steps and after the last. Raises LoopFailed."""
    walked: Walked | None = None
    for event in _runs(history, course(history)):
        if isinstance(event, StepCompleted) and walked is not None:
            yield walked
        walked = after(walked, family, event)
    assert walked is not None, "a stream starts with JobSubmitted"
    yield walked


def stand(history: Sequence[JobEvent], family: Family, step: int) -> Walked:
    """The job as it was after its first `step` steps. Raises LoopFailed."""
    return follow(_runs(history, up_to(course(history), step)), family)


def follow(history: Iterable[JobEvent], family: Family) -> Walked:
    """Lead a job through its log. Raises IllegalMove, LoopFailed."""
    walked: Walked | None = None
    for event in history:
        walked = after(walked, family, event)
    assert walked is not None, "a stream starts with JobSubmitted"
    return walked


def after(walked: Walked | None, family: Family, event: JobEvent) -> Walked:
    """The job and its loop's state once this has happened too. Raises IllegalMove, LoopFailed."""
    if walked is None:
        return Walked(fold(None, event), None)
    job, state, refolds = walked.job, walked.state, walked.refolds
    match event:
        case StepCompleted():
            turn = driver.resume(job, family, state)
            assert turn.state is not None and turn.plan is not None  # noqa: PT018
            refolds = grown(useful(refolds, job, state), turn.plan, event)
            state = driver.fold_in(job, family, turn.state, event).state
        case RequestChanged(route=(here, *_)):
            state = here.state
        case JobRewound(standing=standing):
            state, refolds = standing.state, standing.refolds
    return Walked(fold(job, event), state, refolds)


def _runs(history: Sequence[JobEvent], events: Sequence[JobEvent]) -> list[JobEvent]:
    """A log of a job that runs, with this course."""
    return [*opening(history), JobAdmitted(engine=""), *events]
