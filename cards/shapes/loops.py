"""The loops of the shapes model: encode the text, denoise, decode frame by frame, render. Data only, no torch."""

from msgspec.structs import replace

from cards.loop import Done, Loop, LoopContext, LoopState, StepOutput
from cards.shapes.card import LATENT_FRAMES
from cards.wire import Resources, Scalar, TensorRef, WorkPlan

_MIB = 1 << 20


class _Counted:
    """A loop whose number of steps is known when it begins. Each step reads all inputs and what the last one left."""

    semantics: str
    peak_bytes: int

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
        if state.step == state.steps:
            return Done()
        return WorkPlan(
            instance="shapes",
            loop=state.loop,
            kind=state.loop,
            step=state.step,
            reads=state.inputs | state.tensors,
            scalars=state.scalars | {"steps": state.steps},
            resources=Resources(peak_bytes=self.peak_bytes),
            writes=self.writes(state),
        )

    def advance(self, state: LoopState, output: StepOutput) -> LoopState:
        return replace(
            state,
            step=state.step + 1,
            tensors=state.tensors | output.tensors,
            scalars=state.scalars | output.scalars,
        )

    def finalize(self, state: LoopState) -> dict[str, TensorRef]:
        return state.tensors

    def steps(self, context: LoopContext) -> int:
        return 1

    def writes(self, state: LoopState) -> tuple[str, ...] | None:
        return None

    def scalars(self, context: LoopContext) -> dict[str, Scalar]:
        return {}


class EncodeText(_Counted):
    semantics = "shapes.encode_text/1"
    peak_bytes = 4 * _MIB

    def scalars(self, context: LoopContext) -> dict[str, Scalar]:
        return {"prompt": context.request.prompt, "negative_prompt": context.request.negative_prompt}


class Denoise(_Counted):
    """Flow matching by Euler steps under classifier-free guidance; its state is the latent."""

    semantics = "shapes.flow_euler.cfg/1"
    peak_bytes = 32 * _MIB

    def steps(self, context: LoopContext) -> int:
        return context.request.steps

    def scalars(self, context: LoopContext) -> dict[str, Scalar]:
        request = context.request
        return {
            "seed": request.seed,
            "guidance": request.guidance,
            "shift": context.card.recipe.shift,
            "preview_every": request.preview_every,
        }

    def writes(self, state: LoopState) -> tuple[str, ...]:
        return ("latent",)

    def next(self, state: LoopState) -> WorkPlan | Done:
        plan = super().next(state)
        every = int(state.scalars["preview_every"])
        if isinstance(plan, WorkPlan) and every and (state.step + 1) % every == 0:
            return replace(plan, emits=("preview",))
        return plan


class DecodeVae(_Counted):
    """One latent frame a step; `frames/0`, `frames/1`, ... come out, so a later resume decodes only what is missing."""

    semantics = "shapes.decode_vae/1"
    peak_bytes = 32 * _MIB

    def steps(self, context: LoopContext) -> int:
        return LATENT_FRAMES

    def writes(self, state: LoopState) -> tuple[str, ...]:
        return (f"frames/{state.step}",)

    def next(self, state: LoopState) -> WorkPlan | Done:
        plan = super().next(state)
        return replace(plan, reads=state.inputs) if isinstance(plan, WorkPlan) else plan


class Render(_Counted):
    semantics = "shapes.render/1"
    peak_bytes = 64 * _MIB


LOOPS: dict[str, Loop] = {loop.semantics: loop for loop in (EncodeText(), Denoise(), DecodeVae(), Render())}
