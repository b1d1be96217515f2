"""Forks: a new job's log out of another's course, and what a changed request means in the middle of one. Pure.

A node that is done counts as it is, unless the new request makes its first state another one, or that of a node whose
outputs it reads: then it runs again, if anything still to come reads what it makes. The node that the job is in goes
on from the tensors it has, with the scalars that the new request would have given it.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from cards.card import Node
from cards.errors import InvalidRequest
from cards.family import Family
from cards.loop import LoopState
from cards.request import RequestChanges, ResolvedRequest, revise
from engine import continuing, driver
from engine.course import Walked, course, opening, up_to
from engine.events import (
    JobAdmitted,
    JobCompleted,
    JobEvent,
    JobForked,
    JobReleased,
    JobSubmitted,
    NoticeGiven,
    Place,
    RequestChanged,
    Stage,
)
from engine.job import Job


def log(
    history: Sequence[JobEvent],
    submitted: JobSubmitted,
    forked: JobForked,
    changed: RequestChanged | None,
    *,
    ended: bool,
    engine: str,
) -> list[JobEvent]:
    """The fork's log, which needs nothing of its parent's any more; `ended` if it shares all steps there are."""
    shared = up_to(course(history), forked.at_step)
    last: JobEvent = JobCompleted() if ended else JobReleased(engine=engine)
    changes = [changed] if changed is not None else []
    return [submitted, *opening(history)[1:], forked, JobAdmitted(engine=engine), *shared, *changes, last]


def ended(job: Job, family: Family) -> bool:
    return job.place.index == len(family.card.program.nodes)


def change(walked: Walked, changes: RequestChanges, family: Family) -> RequestChanged | None:
    """What becomes of a job whose request changes where it is now. Raises InvalidRequest, LoopFailed."""
    job = walked.job
    request = revise(job.request, changes, family.card)
    if request == job.request:
        return None
    if ended(job, family):
        raise InvalidRequest(next(iter(changes.fields)), "all steps are done there; fork at an earlier one")
    continuing.check_fork(job.request, request, family.card)
    return RequestChanged(request=request, route=_route(walked, family, request), notices=notices(request, family))


def notices(request: ResolvedRequest, family: Family) -> tuple[NoticeGiven, ...]:
    """Raises InvalidRequest."""
    return tuple(NoticeGiven(code=n.code, field=n.field, message=n.message) for n in family.notices(request))


def _route(walked: Walked, family: Family, request: ResolvedRequest) -> tuple[Stage, ...]:
    job = walked.job
    ahead = {stage.place.index: stage for stage in (Stage(job.place, walked.state), *job.route)}
    firsts = {
        n: (
            driver.first_state(job.request, family, n, job.outputs),
            driver.first_state(request, family, n, job.outputs),
        )
        for n in range(max(ahead) + 1)
        if n not in ahead or ahead[n].place.step
    }
    again = _again(family.card.program.nodes, ahead, {n for n, (old, new) in firsts.items() if old != new})
    stages = {n: Stage(Place(index=n)) for n in (*ahead, *again)}
    for n, (old, new) in firsts.items():
        if n in stages and old.steps != new.steps:
            name = family.card.program.nodes[n].name
            raise InvalidRequest("steps", f"{name} has begun with {old.steps}; fork before its first step to change it")
        if n in ahead:
            stages[n] = Stage(ahead[n].place, _going_on(ahead[n].state, old, new))
    return tuple(stages[n] for n in sorted(stages))


def _again(nodes: Sequence[Node], ahead: Iterable[int], changed: set[int]) -> set[int]:
    """The done nodes that run again: those that begin otherwise than they did, as far as it matters to others."""
    last = max(ahead)
    stale: set[int] = set()
    for n in range(last):
        if n not in ahead and (n in changed or _reads(nodes, [n], stale)):
            stale.add(n)
    readers = {*ahead, *range(last, len(nodes))}
    for n in sorted(stale, reverse=True):
        if _reads(nodes, readers, [n]):
            readers.add(n)
    return stale & readers


def _reads(nodes: Sequence[Node], readers: Iterable[int], makers: Iterable[int]) -> bool:
    sources = [source for n in readers for source in nodes[n].inputs.values()]
    return any(source.startswith(f"{nodes[n].name}.") for n in makers for source in sources)


def _going_on(state: LoopState | None, old: LoopState, new: LoopState) -> LoopState:
    """A state with what the new request would have begun it with; what the loop has remembered since stays."""
    assert state is not None, "a node with steps behind it has a state"
    kept = {name: value for name, value in state.scalars.items() if name in new.scalars or name not in old.scalars}
    return replace(state, inputs=new.inputs, scalars=kept | _changed(old.scalars, new.scalars))


def _changed(old: Mapping[str, object], new: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in new.items() if old.get(name) != value}
