"""Interceptors: they may answer for a model's forward out of what earlier steps have left.

An interceptor has no state of its own. What it must remember, for each job and branch, is tensors of the loop's state,
named `<interceptor>/<branch>/<tensor>`; so jobs cannot meet in it, and one that is resumed goes on as it was.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias

from msgspec import Struct

from cards.branches import alone, driven
from cards.card import Point
from cards.family import Components, Made, StepBody
from cards.folding import MADE
from cards.forward import OUTPUT, Forward, InParts, Outputs
from cards.wire import Scalar, WorkPlan

if TYPE_CHECKING:
    from torch import Tensor


class Ran(Struct, frozen=True):
    """The branch's output, what to remember of it, and whether it came out of what was remembered."""

    output: "Tensor"
    keeps: "dict[str, Tensor]"
    reused: bool


class Interceptor(Protocol):
    """`keeps` names what it remembers of a branch. `kept` is that, or nothing in the branch's first step."""

    name: str
    point: Point
    keeps: tuple[str, ...]
    most: float
    """The largest threshold that makes sense."""

    def run(self, forward: InParts, kept: "Mapping[str, Tensor]", *, threshold: float, last: bool) -> Ran: ...


Parts: TypeAlias = Callable[[Forward], InParts]
"""How the forwards of a body that can be intercepted are taken in parts. Their adapters are on."""


def semantics(plain: str, interceptor: str) -> str:
    """`wan.unipc.cfg/1` becomes `wan.unipc.cfg.step_skip/1`."""
    name, _, version = plain.partition("/")
    return f"{name}.{interceptor}/{version}"


def kept_name(interceptor: str, branch: str, tensor: str) -> str:
    return f"{interceptor}/{branch}/{tensor}"


def relative_change(now: "Tensor", before: "Tensor") -> "Tensor":
    """Mean absolute difference over mean absolute value before: the L1 distance of TeaCache and first-block caching."""
    return (now - before).abs().mean() / before.abs().mean()


def intercepted(interceptor: Interceptor, body: StepBody, fold: StepBody | None, parts: Parts) -> StepBody:
    """The body with the interceptor at its forwards, which are evaluated here: what it remembers is of all branches.

    It makes what its fold would: a refold runs the step again.
    """

    def step(components: Components, plan: WorkPlan, reads: "Mapping[str, Tensor]") -> Made:
        intercepting = _Intercepting(interceptor, plan, reads, parts)
        made = driven(body(components, plan, reads), intercepting)
        derived = {}
        if fold is not None:
            outputs = {f"{MADE}{name}": tensor for name, tensor in made.tensors.items()}
            derived = alone(components, fold(components, plan, {**reads, **outputs})).tensors
        return Made(made.tensors | derived | intercepting.kept, made.scalars | intercepting.reused, made.artifacts)

    return step


class _Intercepting:
    """One step's forwards, intercepted: what it will have to remember, and where it has reused what it had."""

    def __init__(self, interceptor: Interceptor, plan: WorkPlan, reads: "Mapping[str, Tensor]", parts: Parts) -> None:
        self.kept: dict[str, Tensor] = {}
        self.reused: dict[str, Scalar] = {}
        self._interceptor = interceptor
        self._plan = plan
        self._reads = reads
        self._parts = parts

    def __call__(self, forwards: Mapping[str, Forward]) -> dict[str, Outputs]:
        return {branch: {OUTPUT: self._one(branch, forward)} for branch, forward in forwards.items()}

    def _one(self, branch: str, forward: Forward) -> "Tensor":
        name = self._interceptor.name
        names = {tensor: kept_name(name, branch, tensor) for tensor in self._interceptor.keeps}
        kept = {tensor: self._reads[full] for tensor, full in names.items() if full in self._reads}
        with forward.adapted():
            ran = self._interceptor.run(
                self._parts(forward),
                kept,
                threshold=float(self._plan.scalars[name]),
                last=self._plan.step + 1 == self._plan.scalars["steps"],
            )
        self.kept |= {names[tensor]: value for tensor, value in ran.keeps.items()}
        self.reused[f"{name}/{branch}"] = ran.reused
        return ran.output
