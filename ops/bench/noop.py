"""A family whose steps do next to nothing, or multiply matrices for a while: what is left is the runtime.

The prompt is the step's length in seconds.
"""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from cards.card import LoopSpec, ModelCard, Node, OutputSpec, ParitySpec, Program, Range, RecipeSpec
from cards.family import Components, Made, Notice, StepBody
from cards.loop import Done, Loop, LoopContext, LoopState, StepOutput
from cards.request import ResolvedRequest
from cards.wire import TensorRef, WorkPlan

if TYPE_CHECKING:
    import torch

SEMANTICS = "noop.count/1"


def card(name: str, semantics: str) -> ModelCard:
    return ModelCard(
        name=name,
        family=name,
        version="1",
        task="none",
        components={},
        loops={"count": LoopSpec(semantics=semantics)},
        recipe=RecipeSpec(
            method="base",
            data="none",
            assumes_loop={"count": semantics},
            assumes_precision="float32",
            steps=Range(1, 1_000_000, 100),
            guidance=Range(1, 1, 1),
            shift=1.0,
        ),
        parity=ParitySpec(reference="none", rung="C0"),
        output=OutputSpec(width=1, height=1, frames=1, fps=1),
        program=Program(nodes=(Node(name="count", loop="count", outputs=("x",)),), artifacts=()),
        prompt_limit=20,
    )


class Count:
    """Counts to the number of steps that was asked for."""

    def __init__(self, instance: str, semantics: str) -> None:
        self._instance = instance
        self.semantics = semantics

    def init(self, context: LoopContext, inputs: dict[str, TensorRef]) -> LoopState:
        request = context.request
        return LoopState(
            loop=context.loop,
            semantics=self.semantics,
            step=0,
            steps=request.steps,
            scalars={"step_s": float(request.prompt)},
        )

    def next(self, state: LoopState) -> WorkPlan | Done:
        if state.step == state.steps:
            return Done()
        return WorkPlan(
            instance=self._instance,
            loop="count",
            kind="count",
            step=state.step,
            reads=state.tensors,
            scalars=state.scalars,
            writes=("x",),
        )

    def advance(self, state: LoopState, output: StepOutput) -> LoopState:
        return replace(state, step=state.step + 1, tensors=output.tensors)

    def finalize(self, state: LoopState) -> dict[str, TensorRef]:
        return state.tensors


CARD = card("noop", SEMANTICS)
LOOPS: Mapping[str, Loop] = {SEMANTICS: Count("noop", SEMANTICS)}


def count(components: Components, plan: WorkPlan, reads: "Mapping[str, torch.Tensor]") -> Made:
    import torch

    if step_s := float(plan.scalars["step_s"]):
        until = time.perf_counter() + step_s
        square = torch.ones(256, 256)
        while time.perf_counter() < until:
            torch.mm(square, square)
    return Made({"x": torch.tensor([plan.step])})


class Noop:
    card = CARD
    loops = LOOPS

    def weights_digest(self) -> str:
        return "none"

    def notices(self, request: ResolvedRequest) -> tuple[Notice, ...]:
        return ()

    def load(self, device: str) -> Components:
        return {}

    def bodies(self) -> Mapping[str, StepBody]:
        return {"count": count}


FAMILY = Noop()
