"""A toy that says its sizes: beside its tensors a counting step needs as many GiB as its guidance is above 1. It may be
executed with others.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from cards.card import ModelCard
from cards.loop import Done, Loop, LoopContext, LoopState, StepOutput
from cards.request import ResolvedRequest
from cards.sizes import LoopSizes, Sized, Work, always
from cards.wire import TensorRef, WorkPlan
from tests import toy

GIB = 1 << 30


class Together:
    """A loop whose steps may be executed with those of others."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.semantics = loop.semantics

    def init(self, context: LoopContext, inputs: dict[str, TensorRef]) -> LoopState:
        return self._loop.init(context, inputs)

    def next(self, state: LoopState) -> WorkPlan | Done:
        plan = self._loop.next(state)
        return replace(plan, together=True) if isinstance(plan, WorkPlan) else plan

    def advance(self, state: LoopState, output: StepOutput) -> LoopState:
        return self._loop.advance(state, output)

    def finalize(self, state: LoopState) -> dict[str, TensorRef]:
        return self._loop.finalize(state)


class MeasuredToy(toy.ToyFamily):
    """A counting step reads so many `resident` bytes and makes as many."""

    def __init__(self, card: ModelCard = toy.CARD, *, resident: int = 64, flops: int = 10**9) -> None:
        super().__init__(card)
        self.loops["toy.count/1"] = Together(self.loops["toy.count/1"])  # type: ignore[assignment]
        self._resident = resident
        self._flops = flops

    def sizes(self, request: ResolvedRequest) -> Mapping[str, LoopSizes]:
        small = Sized((4, 4), "float32")
        count = always(Work(self._flops, int(max(0.0, request.guidance - 1) * GIB)))
        return {
            "prepare": LoopSizes(tensors={"start": small}, work=always(Work(10**6, 0))),
            "count": LoopSizes(tensors={"x": Sized((self._resident,), "uint8")}, work=count),
            "finish": LoopSizes(),
        }


FAMILY = MeasuredToy()
