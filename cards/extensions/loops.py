"""The loops of a card that has an interceptor enabled: jobs that ask for it run another loop, under its own name.

The semantics id of that loop is in the job's log (`node_started`). All other jobs run the loop that they always ran.
"""

from collections.abc import Callable, Mapping

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from cards.card import InterceptorSpec, LoopSpec
from cards.extensions.block_cache import BlockCache
from cards.extensions.interceptor import Interceptor, Parts, intercepted, kept_name, semantics
from cards.extensions.step_skip import StepSkip
from cards.family import Notice, StepBody
from cards.loop import Done, Loop, LoopContext, LoopState, StepOutput
from cards.request import ResolvedRequest
from cards.wire import Scalar, TensorRef, WorkPlan

_ALL: tuple[Interceptor, ...] = (StepSkip(), BlockCache())
INTERCEPTORS: Mapping[str, Interceptor] = {one.name: one for one in _ALL}

NONE = "none"
CHOICES = (NONE, *INTERCEPTORS)
"""What a model's option `interceptor` may be."""

Branches = Callable[[Mapping[str, Scalar]], tuple[str, ...]]


class Choosing:
    """The plain loop, but that a job which asks for an interceptor begins in the loop that has it."""

    def __init__(self, plain: Loop, others: Mapping[str, Loop]) -> None:
        self.semantics = plain.semantics
        self.next = plain.next
        self.advance = plain.advance
        self.finalize = plain.finalize
        self._plain = plain
        self._others = others

    def init(self, context: LoopContext, inputs: dict[str, TensorRef]) -> LoopState:
        asked = [loop for name, loop in self._others.items() if name in context.request.interceptors]
        return (asked[0] if asked else self._plain).init(context, inputs)


class Intercepted:
    """A loop whose steps also leave what an interceptor remembers of each branch. All of it is derived.

    A step's own body makes it and what the plain loop derives, and is run again where that was not stored.
    """

    def __init__(self, plain: Loop, interceptor: Interceptor, branches: Branches) -> None:
        self.semantics = semantics(plain.semantics, interceptor.name)
        self.finalize = plain.finalize
        self._plain = plain
        self._interceptor = interceptor
        self._branches = branches

    def init(self, context: LoopContext, inputs: dict[str, TensorRef]) -> LoopState:
        state = self._plain.init(context, inputs)
        name = self._interceptor.name
        threshold = context.request.interceptors[name]
        return replace(state, semantics=self.semantics, scalars=state.scalars | {name: threshold})

    def next(self, state: LoopState) -> WorkPlan | Done:
        plan = self._plain.next(state)
        if isinstance(plan, Done):
            return plan
        name, keeps = self._interceptor.name, self._interceptor.keeps
        kept = tuple(kept_name(name, branch, tensor) for branch in self._branches(plan.scalars) for tensor in keeps)
        assert plan.writes is not None, "a loop that can be intercepted promises what its steps make"
        return replace(
            plan,
            kind=f"{plan.kind}.{name}",
            writes=(*plan.writes, *kept),
            derives=(*plan.derives, *kept),
            together=False,
        )

    def advance(self, state: LoopState, output: StepOutput) -> LoopState:
        """Where something was reused is for people to see: no step depends on it."""
        mine = f"{self._interceptor.name}/"
        scalars = {name: value for name, value in output.scalars.items() if not name.startswith(mine)}
        return self._plain.advance(state, StepOutput(output.tensors, scalars))


def enabled(interceptor: str) -> dict[str, InterceptorSpec] | UnsetType:
    """What a card says of the interceptor that was chosen for it."""
    if interceptor == NONE:
        return UNSET
    one = INTERCEPTORS[interceptor]
    return {one.name: InterceptorSpec(point=one.point, most=one.most)}


def notices(request: ResolvedRequest) -> tuple[Notice, ...]:
    """To whoever asks for an interceptor."""
    return tuple(
        Notice("inexact", f"interceptors.{name}", f"{name} changes what is computed: the job is not exact")
        for name in request.interceptors
    )


def with_interceptors(plain: Loop, spec: LoopSpec, branches: Branches) -> tuple[Loop, ...]:
    """The loop, and one more for each interceptor that the card has enabled in it."""
    if not spec.interceptors:
        return (plain,)
    others = {name: Intercepted(plain, INTERCEPTORS[name], branches) for name in spec.interceptors}
    return (Choosing(plain, others), *others.values())


def bodies(kind: str, spec: LoopSpec, body: StepBody, fold: StepBody | None, parts: Parts) -> dict[str, StepBody]:
    """What the steps of those loops run, beside the body of the plain one."""
    return {f"{kind}.{name}": intercepted(INTERCEPTORS[name], body, fold, parts) for name in spec.interceptors or ()}
