"""The toy family with a state that is a fold: a multistep solver with a history of two, as UniPC has.

A counting step makes `m`, the model's output, and a gain that it finds. The latent and the history follow from that:
the newest of the history is a tensor of the step's own, the older one is handed through. The words of the prompt are
those of the toy, and more:

wide: how many times over the start is laid side by side; 3000 makes tensors too large for a message.
early: after so many steps the loop says that it is done.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from cards.card import LoopSpec, ModelCard
from cards.family import Components, Made, StepBody
from cards.loop import Done, LoopState, StepOutput
from cards.wire import TensorRef, WorkPlan
from tests import toy

TOY = toy.FAMILY.bodies()
DERIVED = ("x", "newer", "older")


def card(snapshot_every: int | UnsetType) -> ModelCard:
    spec = LoopSpec(semantics="toy.multistep/1", components=("counter",), snapshot_every=snapshot_every)
    recipe = replace(toy.CARD.recipe, assumes_loop={"count": spec.semantics})
    return replace(toy.CARD, loops=toy.CARD.loops | {"count": spec}, recipe=recipe)


class Multistep(toy.ToyLoop):
    def next(self, state: LoopState) -> WorkPlan | Done:
        wishes = toy.directives(str(state.scalars["prompt"]))
        plan = super().next(state)
        if isinstance(plan, Done) or wishes.get("early") == state.step:
            return Done()
        writes = None if {"adaptive", "early"} & wishes.keys() else ("m", *DERIVED)
        return replace(plan, writes=writes, derives=DERIVED)

    def advance(self, state: LoopState, output: StepOutput) -> LoopState:
        return replace(state, step=state.step + 1, tensors={name: output.tensors[name] for name in DERIVED})

    def finalize(self, state: LoopState) -> dict[str, TensorRef]:
        return {"x": state.tensors["x"], "parts/0": state.tensors["older"], "parts/1": state.inputs["start"]}


def count(components: Components, plan: WorkPlan, reads: Mapping[str, Any]) -> Made:
    """The expensive part, at half the precision of the latent and laid out otherwise."""
    import torch

    x = _latent(plan, reads)
    made = TOY["count"](components, plan, {**reads, "x": x[:, :4]})
    m = (made.tensors["x"].repeat(1, x.shape[1] // 4) + 0.1 * x).tanh()
    return Made({"m": m.to(torch.bfloat16).t()}, {**made.scalars, "gain": 1.5 + float(m[0, 0])}, made.artifacts)


def count_fold(components: Components, plan: WorkPlan, reads: Mapping[str, Any]) -> Made:
    x = _latent(plan, reads)
    newer = x - reads["made/m"].t().float() * float(plan.scalars["made/gain"])
    older = reads.get("newer", newer)
    return Made({"x": 0.5 * x + 0.3 * newer - 0.1 * older, "newer": newer, "older": older})


def _latent(plan: WorkPlan, reads: Mapping[str, Any]) -> Any:
    wide = int(toy.directives(str(plan.scalars["prompt"])).get("wide", 1))
    return reads["x"] if "x" in reads else reads["start"].repeat(1, wide)


class Folded(toy.ToyFamily):
    """`fold` is another body in the place of the fold."""

    def __init__(self, snapshot_every: int | UnsetType = UNSET, fold: Callable[..., Made] = count_fold) -> None:
        super().__init__(card(snapshot_every))
        self.loops = {**self.loops, "toy.multistep/1": Multistep("toy.multistep/1", ("x",))}
        self._fold = fold

    def bodies(self) -> Mapping[str, StepBody]:
        return {**super().bodies(), "count": count, "count.fold": self._fold}
