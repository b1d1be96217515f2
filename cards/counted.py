"""A loop whose number of steps is known when it begins: what most loops are. Data only, no torch.

A subclass says how many steps, what the scalars are, and what a step leaves.
"""

from msgspec.structs import replace

from cards.loop import Done, LoopContext, LoopState, StepOutput
from cards.wire import Resources, Scalar, TensorRef, WorkPlan


class Counted:
    """Each step reads all inputs and what the last one left. `instance` is the card whose modules run it."""

    semantics: str
    peak_bytes: int = 0

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
        )

    def steps(self, context: LoopContext) -> int:
        return 1

    def writes(self, state: LoopState) -> tuple[str, ...] | None:
        return None

    def scalars(self, context: LoopContext) -> dict[str, Scalar]:
        return {}
