"""A family as UniPC runs Wan 2.1 at 480p: a step makes 4 MB, and an 8 MB latent and a history of two follow from it.

The prompt is the step's length in seconds, in which the processor is free, as while a device computes.
"""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from cards.card import LoopSpec
from cards.family import Components, Made, StepBody
from cards.loop import Done, Loop, LoopContext, LoopState, StepOutput
from cards.wire import TensorRef, WorkPlan
from ops.bench.noop import Count, Noop, card

if TYPE_CHECKING:
    import torch

ELEMENTS = 2_097_152
"""Of a latent; 16 x 21 x 60 x 104, and as round as memory."""
DERIVED = ("x", "newer", "older")


class Solve(Count):
    def init(self, context: LoopContext, inputs: dict[str, TensorRef]) -> LoopState:
        state = super().init(context, inputs)
        return replace(state, scalars=state.scalars | {"seed": context.request.seed})

    def next(self, state: LoopState) -> WorkPlan | Done:
        plan = super().next(state)
        return replace(plan, writes=("m", *DERIVED), derives=DERIVED) if isinstance(plan, WorkPlan) else plan

    def advance(self, state: LoopState, output: StepOutput) -> LoopState:
        return super().advance(state, StepOutput({name: output.tensors[name] for name in DERIVED}))


def count(components: Components, plan: WorkPlan, reads: "Mapping[str, torch.Tensor]") -> Made:
    import torch

    time.sleep(float(plan.scalars["step_s"]))
    m = torch.ones(ELEMENTS, dtype=torch.bfloat16)
    m[0], m[1] = (
        float(plan.scalars["seed"]),
        plan.step,
    )  # no two steps make the same bytes, or they would be stored once
    return Made({"m": m})


def fold(components: Components, plan: WorkPlan, reads: "Mapping[str, torch.Tensor]") -> Made:
    import torch

    m = reads["made/m"].float()
    x = reads["x"] if "x" in reads else torch.zeros(ELEMENTS)
    newer = x - 0.1 * m
    older = reads.get("newer", newer)
    return Made({"x": 0.9 * x + 1.5 * newer - 0.5 * older, "newer": newer, "older": older})


class Multistep(Noop):
    def __init__(self, name: str, snapshot_every: int | UnsetType = UNSET) -> None:
        semantics = f"{name}.solve/1"
        spec = LoopSpec(semantics=semantics, snapshot_every=snapshot_every)
        self.card = replace(card(name, semantics), loops={"count": spec})
        self.loops: Mapping[str, Loop] = {semantics: Solve(name, semantics)}

    def bodies(self) -> Mapping[str, StepBody]:
        return {"count": count, "count.fold": fold}


FAMILY = Multistep("multistep")
