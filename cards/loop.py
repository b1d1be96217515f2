"""The loop contract: a serialisable state machine that the engine drives and a worker executes.

    state = loop.init(context, inputs)
    while not isinstance(plan := loop.next(state), Done):
        state = loop.advance(state, <what the step body made of the plan>)
    outputs = loop.finalize(state)

The four functions are pure and kernel-free. What a state holds is all there is: written as bytes and read in another
process on another day, it continues bit for bit.
"""

from typing import Protocol

from msgspec import Struct

from cards.card import ModelCard
from cards.request import ResolvedRequest
from cards.wire import Scalar, TensorRef, WorkPlan


class LoopState(Struct, frozen=True, kw_only=True):
    """Where a loop is. `step` steps of `steps` are done.

    `tensors` are what one step leaves to the next, `inputs` what stays the same. `scalars` hold the rest: the seed,
    the guidance, and whatever a policy must remember. Nothing about a job is kept anywhere else.
    """

    loop: str
    semantics: str
    step: int
    steps: int
    tensors: dict[str, TensorRef] = {}
    inputs: dict[str, TensorRef] = {}
    scalars: dict[str, Scalar] = {}


class Done(Struct, frozen=True):
    """There is no next step."""


class StepOutput(Struct, frozen=True):
    """What `advance` folds in: the tensors and scalars that a step made."""

    tensors: dict[str, TensorRef] = {}
    scalars: dict[str, Scalar] = {}


class LoopContext(Struct, frozen=True):
    """What a loop may know when it begins: the card it belongs to, the request, and its name in the program."""

    card: ModelCard
    request: ResolvedRequest
    loop: str


class Loop(Protocol):
    """`semantics` names the maths that the four functions and their step bodies do together."""

    semantics: str

    def init(self, context: LoopContext, inputs: dict[str, TensorRef]) -> LoopState: ...
    def next(self, state: LoopState) -> WorkPlan | Done: ...
    def advance(self, state: LoopState, output: StepOutput) -> LoopState: ...
    def finalize(self, state: LoopState) -> dict[str, TensorRef]: ...
