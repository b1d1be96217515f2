"""What a job of a model would take: bytes resident, made and stored, and work. No weights are read, no kernel runs.

The loops themselves are walked, on tensors that are not there: what they read, make and derive is theirs to say. How
large each is the family says (cards/sizes.py).
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from msgspec import Struct

from cards.errors import Unmeasured
from cards.family import Family
from cards.loop import LoopState, StepOutput
from cards.request import ResolvedRequest
from cards.sizes import WIDTH, LoopSizes, Work, sizes_of
from cards.wire import TensorRef, WorkPlan
from engine import driver


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


class KindPlan(Struct, frozen=True):
    """The steps of one kind in a node. `step_bytes` are stored at every step, `snapshot_bytes` at each of `snapshots`
    besides; both of the largest.
    """

    node: str
    kind: str
    steps: int
    step_bytes: int
    snapshots: int
    snapshot_bytes: int
    stored_bytes: int
    held_bytes: int
    """What a step reads, makes and needs beside that, at most."""
    tensor_bytes: int
    """What it reads and makes, at most."""
    activation_bytes: int
    """What it needs beside that, at most."""
    step_flops: int
    """Of the largest."""
    flops: int
    """Of all of them."""


class JobPlan(Struct, frozen=True):
    weights: Mapping[str, int]
    """Bytes resident by component, all in its precision: diffusers keeps a few in float32 (0.2 % of Wan 1.3B)."""
    kinds: tuple[KindPlan, ...]
    tensors: tuple[TensorPlan, ...]

    @property
    def stored_bytes(self) -> int:
        return sum(kind.stored_bytes for kind in self.kinds)

    @property
    def flops(self) -> int:
        return sum(kind.flops for kind in self.kinds)

    @property
    def peak_bytes(self) -> int:
        """All components stay resident; on top of them the largest step."""
        return sum(self.weights.values()) + max((kind.held_bytes for kind in self.kinds), default=0)


class _Step(Struct, frozen=True):
    plan: WorkPlan
    made: dict[str, TensorRef]
    snapshot: bool
    work: Work

    @property
    def stored(self) -> dict[str, TensorRef]:
        return {name: ref for name, ref in self.made.items() if self.snapshot or name not in self.plan.derives}

    @property
    def tensor_bytes(self) -> int:
        return _nbytes(self.plan.reads) + _nbytes(self.made)

    @property
    def held_bytes(self) -> int:
        return self.tensor_bytes + self.work.activations


def plan(family: Family, request: ResolvedRequest) -> JobPlan:
    """Raises Unmeasured, BadCheckpoint."""
    sizes = sizes_of(family, request)
    outputs: dict[str, TensorRef] = {}
    kinds: list[KindPlan] = []
    tensors: list[TensorPlan] = []
    for index, node in enumerate(family.card.program.nodes):
        sized = sizes.get(node.loop, LoopSizes())
        first = driver.first_state(request, family, index, outputs)
        steps, last = _walk(family, first, sized)
        made = family.loops[last.semantics].finalize(last)
        outputs |= {f"{node.name}.{name}": ref for name, ref in made.items()}
        kinds += [_kind(node.name, kind, steps) for kind, steps in _by_kind(steps).items()]
        tensors += _tensors(node.name, steps)
    card = family.card
    weights = {name: part.parameters * WIDTH[part.precision] for name, part in card.components.items()}
    return JobPlan(weights, tuple(kinds), tuple(tensors))


def _walk(family: Family, state: LoopState, sizes: LoopSizes) -> tuple[list[_Step], LoopState]:
    loop, steps = family.loops[state.semantics], []
    while isinstance(work := loop.next(state), WorkPlan):
        names = sizes.tensors if work.writes is None else work.writes
        made = {name: _absent(family, f"{state.loop}/{state.step}/", name, sizes) for name in names}
        snapshot = driver.is_snapshot(family.card.loops[state.loop].snapshot_every, state)
        steps.append(_Step(work, made, snapshot, sizes.work(work)))
        state = loop.advance(state, StepOutput(made))
    return steps, state


def _absent(family: Family, step: str, name: str, sizes: LoopSizes) -> TensorRef:
    try:
        sized = sizes.of(name)
    except KeyError as error:
        raise Unmeasured(family.card.name, f"its family does not say how large {step}{name} is") from error
    return TensorRef(f"{step}{name}", sized.dtype, sized.shape, (), sized.nbytes)


def _by_kind(steps: list[_Step]) -> dict[str, list[_Step]]:
    found: dict[str, list[_Step]] = {}
    for step in steps:
        found.setdefault(step.plan.kind, []).append(step)
    return found


def _kind(node: str, kind: str, steps: list[_Step]) -> KindPlan:
    derived = [{one: ref for one, ref in step.stored.items() if one in step.plan.derives} for step in steps]
    each = [{one: ref for one, ref in step.stored.items() if one not in step.plan.derives} for step in steps]
    return KindPlan(
        node=node,
        kind=kind,
        steps=len(steps),
        step_bytes=max(map(_nbytes, each)),
        snapshots=sum(map(bool, derived)),
        snapshot_bytes=max(map(_nbytes, derived)),
        stored_bytes=sum(_nbytes(step.stored) for step in steps),
        held_bytes=max(step.held_bytes for step in steps),
        tensor_bytes=max(step.tensor_bytes for step in steps),
        activation_bytes=max(step.work.activations for step in steps),
        step_flops=max(step.work.flops for step in steps),
        flops=sum(step.work.flops for step in steps),
    )


def _tensors(node: str, steps: list[_Step]) -> Iterator[TensorPlan]:
    """What steps make anew under one name, and series: `frames/0`, `frames/1`, each of which is made once."""
    times = Counter(name for step in steps for name in step.made)
    groups: dict[str, list[tuple[_Step, str]]] = {}
    for step in steps:
        for name in step.made:
            shown = name if times[name] > 1 else name.partition("/")[0]
            groups.setdefault(shown, []).append((step, name))
    for shown, made in groups.items():
        step, name = made[-1]
        ref = step.made[name]
        stored = [one.stored[name].nbytes for one, name in made if name in one.stored]
        yield TensorPlan(node, shown, ref.shape, ref.dtype, ref.nbytes, len(stored), sum(stored))


def _nbytes(refs: Mapping[str, TensorRef]) -> int:
    return sum(ref.nbytes for ref in refs.values())
