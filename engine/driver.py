"""The loop driver: walks a card's program, one plan at a time. Pure: it says what happened, others write it down."""

from msgspec import Struct

from cards.card import Node
from cards.family import Family
from cards.loop import Done, Loop, LoopContext, LoopState, StepOutput
from cards.request import ResolvedRequest
from cards.wire import StepResult, TensorRef, WorkPlan
from engine.events import JobCompleted, JobEvent, NodeCompleted, NodeStarted, StepCompleted
from engine.job import Job


class Turn(Struct, frozen=True):
    """What a result led to: the events to append together, and the state to go on from (None at the end)."""

    events: tuple[JobEvent, ...]
    state: LoopState | None


def node_of(job: Job, family: Family) -> Node:
    return family.card.program.nodes[job.place.index]


def begin(job: Job, family: Family) -> LoopState:
    """The first state of the node where the job is: a function of its request and of what earlier nodes made."""
    return _begin(job.request, family, job.place.index, job.outputs)


def start(job: Job, family: Family, state: LoopState) -> tuple[JobEvent, ...]:
    """What to append before the first step of a node that has not been started."""
    return () if job.place.started else (_started(node_of(job, family), state),)


def plan(state: LoopState, family: Family) -> WorkPlan:
    """The next step. A state is only kept while there is one."""
    step = _loop(family, state).next(state)
    assert isinstance(step, WorkPlan), f"{state.loop} has no step after {state.step}"
    return step


def fold_in(job: Job, family: Family, state: LoopState, result: StepResult, worker: str) -> Turn:
    """One step's result: what it says of the step, of its node if that ends here, and of the job if that ends too."""
    node = node_of(job, family)
    loop = _loop(family, state)
    done = StepCompleted(
        node=node.name,
        step=state.step,
        kind=plan(state, family).kind,
        tensors=result.tensors,
        scalars=result.scalars,
        artifacts=result.artifacts,
        worker=worker,
        seconds=result.seconds,
    )
    state = loop.advance(state, StepOutput(result.tensors, result.scalars))
    if not isinstance(loop.next(state), Done):
        return Turn((done,), state)
    made = NodeCompleted(node=node.name, outputs=loop.finalize(state))
    following = job.place.index + 1
    if following == len(family.card.program.nodes):
        return Turn((done, made, JobCompleted()), None)
    outputs = {**job.outputs, **{f"{node.name}.{name}": ref for name, ref in made.outputs.items()}}
    state = _begin(job.request, family, following, outputs)
    return Turn((done, made, _started(family.card.program.nodes[following], state)), state)


def _begin(request: ResolvedRequest, family: Family, index: int, outputs: dict[str, TensorRef]) -> LoopState:
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


def _started(node: Node, state: LoopState) -> NodeStarted:
    return NodeStarted(node=node.name, loop=node.loop, semantics=state.semantics, steps=state.steps)


def _loop(family: Family, state: LoopState) -> Loop:
    return family.loops[state.semantics]
