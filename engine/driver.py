"""The loop driver: walks a card's program, one plan at a time. Pure: it says what happened, others write it down.

Loops are a family's code. Whatever one raises comes out of here as LoopFailed and ends its own job.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from cards.card import Node
from cards.family import Family
from cards.loop import Done, Loop, LoopContext, LoopState, StepOutput
from cards.request import ResolvedRequest
from cards.wire import StepResult, TensorRef, UnitId, WorkPlan, promised
from engine.errors import LoopFailed
from engine.events import JobCompleted, JobEvent, NodeCompleted, NodeStarted, StepCompleted
from engine.job import Job, fold

log = logging.getLogger("keyframe.driver")


class Turn(Struct, frozen=True):
    """What else becomes true, in the same append, and the state and the plan to go on with (None at the end)."""

    events: tuple[JobEvent, ...]
    state: LoopState | None
    plan: WorkPlan | None


class Ahead(Struct, frozen=True):
    """A step whose inputs are still being made, and the state that it would follow."""

    state: LoopState
    plan: WorkPlan


def node_of(job: Job, family: Family) -> Node:
    return family.card.program.nodes[job.place.index]


def resume(job: Job, family: Family, state: LoopState | None) -> Turn:
    """Go on from a saved state, or from the first one of the node where the job is. Raises LoopFailed."""
    with _family_code(node_of(job, family)):
        return _resume(job, family, state)


def first_state(request: ResolvedRequest, family: Family, index: int, outputs: dict[str, TensorRef]) -> LoopState:
    """The state that a node begins with, given what earlier nodes made. Raises LoopFailed."""
    with _family_code(family.card.program.nodes[index]):
        return _begin(request, family, index, outputs)


def completed(node: Node, plan: WorkPlan, result: StepResult, worker: str) -> StepCompleted:
    return StepCompleted(
        node=node.name,
        step=plan.step,
        kind=plan.kind,
        tensors=result.tensors,
        scalars=result.scalars,
        artifacts=result.artifacts,
        worker=worker,
        seconds=result.seconds,
        derived=() if plan.snapshot else plan.derives,
        observed=result.observed,
    )


def fold_in(job: Job, family: Family, state: LoopState, done: StepCompleted) -> Turn:
    """A step is done: perhaps its node ends with it, and perhaps the job. Raises LoopFailed."""
    with _family_code(node_of(job, family)):
        return _fold_in(job, family, state, done)


def ahead(family: Family, state: LoopState, unit: UnitId, plan: WorkPlan) -> Ahead | None:
    """What is sure to follow a unit that is out, if anything is: its results are read as what it promised to make."""
    if plan.writes is None:
        return None
    try:
        output = StepOutput({name: promised(unit, name) for name in plan.writes})
        state = _loop(family, state).advance(state, output)
        following = _plan(family, state)
    except Exception:  # a card is others' code: what is wrong there is the job's failure once it is asked in its turn
        log.exception("loop %s cannot look ahead", state.loop)
        return None
    return Ahead(state, following) if isinstance(following, WorkPlan) else None


def as_promised(sent: WorkPlan, following: WorkPlan | None) -> bool:
    """Whether a plan that was sent ahead is the one that really follows, but for the digests that it reads."""
    return following is not None and _without_digests(sent) == _without_digests(following)


def _without_digests(plan: WorkPlan) -> tuple[WorkPlan, list[str]]:
    return replace(plan, reads={}), sorted(plan.reads)


def _fold_in(job: Job, family: Family, state: LoopState, done: StepCompleted) -> Turn:
    node = node_of(job, family)
    loop = _loop(family, state)
    state = loop.advance(state, StepOutput(done.tensors, done.scalars))
    plan = _plan(family, state)
    if isinstance(plan, WorkPlan):
        return Turn((), state, plan)
    made = NodeCompleted(node=node.name, outputs=loop.finalize(state))
    following = fold(job, made)
    if following.place.index == len(family.card.program.nodes):
        return Turn((made, JobCompleted()), None, None)
    turn = _resume(following, family, _waiting(job, following, family))
    return replace(turn, events=(made, *turn.events))


def _resume(job: Job, family: Family, state: LoopState | None) -> Turn:
    if state is None:
        state = _begin(job.request, family, job.place.index, job.outputs)
    plan = _next(family, state)
    return Turn(() if job.place.started else (_started(node_of(job, family), state),), state, plan)


def _waiting(before: Job, job: Job, family: Family) -> LoopState | None:
    """The state of a node that waited for earlier ones to run again: it reads what they have made now."""
    if not before.route or before.route[0].state is None:
        return None
    fresh = _begin(job.request, family, job.place.index, job.outputs)
    return replace(before.route[0].state, inputs=fresh.inputs)


def _begin(request: ResolvedRequest, family: Family, index: int, outputs: dict[str, TensorRef]) -> LoopState:
    """The first state of a node: a function of the request and of what earlier nodes made."""
    node = family.card.program.nodes[index]
    inputs = {name: ref for into, source in node.inputs.items() for name, ref in _wire(into, source, outputs)}
    semantics = family.card.loops[node.loop].semantics
    return family.loops[semantics].init(LoopContext(family.card, request, node.loop), inputs)


def _wire(into: str, source: str, outputs: dict[str, TensorRef]) -> list[tuple[str, TensorRef]]:
    """An output by its name, or a series of them: `decode.frames` also stands for `decode.frames/0`, `/1`, ..."""
    return [
        (into + name.removeprefix(source), ref)
        for name, ref in outputs.items()
        if name == source or name.startswith(f"{source}/")
    ]


def _next(family: Family, state: LoopState) -> WorkPlan:
    """The step after a state that was kept, which is one that has a step after it."""
    plan = _plan(family, state)
    if isinstance(plan, Done):
        raise ValueError(f"{state.loop} has nothing to do from step {state.step}")
    return plan


def _plan(family: Family, state: LoopState) -> WorkPlan | Done:
    """The loop's next step. Whether what it derives is stored is the card's to say, not the loop's."""
    plan = _loop(family, state).next(state)
    if isinstance(plan, WorkPlan) and plan.derives:
        return replace(plan, snapshot=is_snapshot(family.card.loops[state.loop].snapshot_every, state))
    return plan


def is_snapshot(every: int | UnsetType, state: LoopState) -> bool:
    """Whether what the step after this state derives is stored."""
    done = state.step + 1
    return every is UNSET or done % every == 0 or done == state.steps


def _started(node: Node, state: LoopState) -> NodeStarted:
    return NodeStarted(node=node.name, loop=node.loop, semantics=state.semantics, steps=state.steps)


def _loop(family: Family, state: LoopState) -> Loop:
    return family.loops[state.semantics]


@contextmanager
def _family_code(node: Node) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        log.exception("loop %s failed", node.loop)
        raise LoopFailed(f"loop {node.loop} raised {type(error).__name__}: {error}") from error
