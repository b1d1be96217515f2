"""What a job of a model would take: bytes resident, made and stored, and work. No weights are read, no kernel runs.

The loops themselves are walked, on tensors that are not there: what they read, make and derive is theirs to say. How
large each is the family says (cards/sizes.py).
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from msgspec import Struct

from cards.family import Family
from cards.loop import LoopState, StepOutput
from cards.request import ResolvedRequest
from cards.sizes import WIDTH, LoopSizes, Measurable
from cards.wire import TensorRef, WorkPlan
from engine import driver
from ops.errors import OpsError

TFLOPS = 0.08
"""A prior: a float32 matrix product of 2048 x 2048 on two cores of a server CPU (AMD EPYC, AVX-512), measured."""


class TensorPlan(Struct, frozen=True):
    """One name that a node's steps make. Of several shapes the last one is shown."""

    node: str
    tensor: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    stored: int
    """How many of them are stored."""
    stored_bytes: int


class NodePlan(Struct, frozen=True):
    """`step_bytes` are stored at every step, `snapshot_bytes` at each of `snapshots` besides; both of the largest."""

    node: str
    steps: int
    step_bytes: int
    snapshots: int
    snapshot_bytes: int
    stored_bytes: int
    tensor_bytes: int
    """What the largest step reads and makes."""
    activations: int
    flops: float
    """Of one step."""


class JobPlan(Struct, frozen=True):
    weights: Mapping[str, int]
    """Bytes resident by component."""
    nodes: tuple[NodePlan, ...]
    tensors: tuple[TensorPlan, ...]

    @property
    def stored_bytes(self) -> int:
        return sum(node.stored_bytes for node in self.nodes)

    @property
    def peak_bytes(self) -> int:
        """All components stay resident; on top of them the largest step."""
        largest = max((node.tensor_bytes + node.activations for node in self.nodes), default=0)
        return sum(self.weights.values()) + largest


class _Step(Struct, frozen=True):
    plan: WorkPlan
    made: dict[str, TensorRef]
    snapshot: bool

    @property
    def stored(self) -> dict[str, TensorRef]:
        return {name: ref for name, ref in self.made.items() if self.snapshot or name not in self.plan.derives}


def plan(family: Family, request: ResolvedRequest) -> JobPlan:
    """Raises OpsError if the family does not say how large its tensors are."""
    if not isinstance(family, Measurable):
        raise OpsError(f"{family.card.name}: the family {family.card.family!r} does not say how large its tensors are")
    sizes = family.sizes(request)
    outputs: dict[str, TensorRef] = {}
    nodes: list[NodePlan] = []
    tensors: list[TensorPlan] = []
    for index, node in enumerate(family.card.program.nodes):
        sized = sizes.get(node.loop, LoopSizes())
        first = driver.first_state(request, family, index, outputs)
        steps, last = _walk(family, first, sized)
        made = family.loops[last.semantics].finalize(last)
        outputs |= {f"{node.name}.{name}": ref for name, ref in made.items()}
        nodes.append(_node(node.name, steps, sized))
        tensors += _tensors(node.name, steps)
    card = family.card
    weights = {name: part.parameters * WIDTH[part.precision] for name, part in card.components.items()}
    return JobPlan(weights, tuple(nodes), tuple(tensors))


def _walk(family: Family, state: LoopState, sizes: LoopSizes) -> tuple[list[_Step], LoopState]:
    loop, steps = family.loops[state.semantics], []
    while isinstance(work := loop.next(state), WorkPlan):
        names = sizes.tensors if work.writes is None else work.writes
        made = {name: _absent(f"{state.loop}/{state.step}/{name}", name, sizes) for name in names}
        snapshot = driver.is_snapshot(family.card.loops[state.loop].snapshot_every, state)
        steps.append(_Step(work, made, snapshot))
        state = loop.advance(state, StepOutput(made))
    return steps, state


def _absent(digest: str, name: str, sizes: LoopSizes) -> TensorRef:
    try:
        sized = sizes.of(name)
    except KeyError as error:
        raise OpsError(f"the family does not say how large {digest} is") from error
    return TensorRef(digest, sized.dtype, sized.shape, (), sized.nbytes)


def _node(name: str, steps: list[_Step], sizes: LoopSizes) -> NodePlan:
    derived = [{one: ref for one, ref in step.stored.items() if one in step.plan.derives} for step in steps]
    each = [{one: ref for one, ref in step.stored.items() if one not in step.plan.derives} for step in steps]
    return NodePlan(
        node=name,
        steps=len(steps),
        step_bytes=max(map(_nbytes, each), default=0),
        snapshots=sum(map(bool, derived)),
        snapshot_bytes=max(map(_nbytes, derived), default=0),
        stored_bytes=sum(_nbytes(step.stored) for step in steps),
        tensor_bytes=max((_nbytes(step.plan.reads) + _nbytes(step.made) for step in steps), default=0),
        activations=sizes.activations,
        flops=sizes.flops,
    )


def _tensors(node: str, steps: list[_Step]) -> Iterator[TensorPlan]:
    """What every step makes anew under one name, and series: `frames/0`, `frames/1`, of which each step adds one."""
    times = Counter(name for step in steps for name in step.made)
    groups: dict[str, list[tuple[_Step, str]]] = {}
    for step in steps:
        for name in step.made:
            shown = name if times[name] > 1 else name.removesuffix(f"/{step.plan.step}")
            groups.setdefault(shown, []).append((step, name))
    for shown, made in groups.items():
        step, name = made[-1]
        ref = step.made[name]
        stored = [one.stored[name].nbytes for one, name in made if name in one.stored]
        yield TensorPlan(node, shown, ref.shape, ref.dtype, ref.nbytes, len(stored), sum(stored))


def _nbytes(refs: Mapping[str, TensorRef]) -> int:
    return sum(ref.nbytes for ref in refs.values())
