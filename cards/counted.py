"""A loop whose number of steps is known when it begins: what most loops are. Data only, no torch.

A subclass says how many steps, what the scalars are, and what a step leaves; `Simple` is told that instead.
"""

from collections.abc import Callable
from typing import TypeAlias

from msgspec.structs import replace

from cards import canvas
from cards.loop import Done, LoopContext, LoopState, StepOutput
from cards.wire import Resources, Scalar, TensorRef, WorkPlan


class Counted:
    """Each step reads all inputs and what the last one left. `instance` is the card whose modules run it.

    `together`: its forwards may be rows of one with those of other jobs.
    """

    semantics: str
    peak_bytes: int = 0
    feature: bool = False
    together: bool = False

    def __init__(self, instance: str) -> None:
        self.instance = instance

    def init(self, context: LoopContext, inputs: dict[str, TensorRef]) -> LoopState:
        return LoopState(
            loop=context.loop,
            semantics=self.semantics,
            step=0,
            steps=self.steps(context),
            inputs=inputs,
            scalars=self.scalars(context),
        )

    def next(self, state: LoopState) -> WorkPlan | Done:
        return Done() if state.step == state.steps else self.plan(state)

    def advance(self, state: LoopState, output: StepOutput) -> LoopState:
        return replace(
            state,
            step=state.step + 1,
            tensors=state.tensors | output.tensors,
            scalars=state.scalars | output.scalars,
        )

    def finalize(self, state: LoopState) -> dict[str, TensorRef]:
        return state.tensors

    def plan(self, state: LoopState) -> WorkPlan:
        return WorkPlan(
            instance=self.instance,
            loop=state.loop,
            kind=state.loop,
            step=state.step,
            reads=state.inputs | state.tensors,
            scalars=state.scalars | {"steps": state.steps},
            resources=Resources(peak_bytes=self.peak_bytes),
            writes=self.writes(state),
            feature=self.feature,
            together=self.together,
        )

    def steps(self, context: LoopContext) -> int:
        return 1

    def writes(self, state: LoopState) -> tuple[str, ...] | None:
        return None

    def scalars(self, context: LoopContext) -> dict[str, Scalar]:
        return {}


Scalars: TypeAlias = Callable[[LoopContext], dict[str, Scalar]]


def nothing(context: LoopContext) -> dict[str, Scalar]:
    return {}


def size(context: LoopContext) -> dict[str, Scalar]:
    """Of the picture that is asked for, in pixels."""
    width, height, _ = canvas.pixels(context.request, context.card.output)
    return {"width": width, "height": height}


def fps(context: LoopContext) -> dict[str, Scalar]:
    return {"fps": context.card.output.fps}


class Simple(Counted):
    """A loop that needs no class of its own: each step leaves the same names, which `makes` has; None promises none."""

    def __init__(
        self,
        instance: str,
        semantics: str,
        makes: tuple[str, ...] | None = None,
        scalars: Scalars = nothing,
        steps: Callable[[LoopContext], int] | None = None,
        *,
        feature: bool = False,
        together: bool = False,
    ) -> None:
        super().__init__(instance)
        self.feature = feature
        self.semantics = semantics
        self.together = together
        self._makes = makes
        self._scalars = scalars
        self._steps = steps

    def steps(self, context: LoopContext) -> int:
        return self._steps(context) if self._steps else super().steps(context)

    def scalars(self, context: LoopContext) -> dict[str, Scalar]:
        return self._scalars(context)

    def writes(self, state: LoopState) -> tuple[str, ...] | None:
        return self._makes
