"""The loops of the shapes model: encode the text, denoise, decode frame by frame, render. Data only, no torch."""

from msgspec.structs import replace

from cards.counted import Counted
from cards.loop import Loop, LoopContext, LoopState
from cards.shapes.card import LATENT_FRAMES
from cards.wire import Scalar, WorkPlan

_MIB = 1 << 20


class EncodeText(Counted):
    semantics = "shapes.encode_text/1"
    feature = True
    peak_bytes = 4 * _MIB

    def scalars(self, context: LoopContext) -> dict[str, Scalar]:
        return {"prompt": context.request.prompt, "negative_prompt": context.request.negative_prompt}


class Denoise(Counted):
    """Flow matching by Euler steps under classifier-free guidance; its state is the latent."""

    semantics = "shapes.flow_euler.cfg/1"
    peak_bytes = 32 * _MIB
    together = True

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

    def plan(self, state: LoopState) -> WorkPlan:
        every = int(state.scalars["preview_every"])
        emits = ("preview",) if every and (state.step + 1) % every == 0 else ()
        return replace(super().plan(state), emits=emits)


class DecodeVae(Counted):
    """One latent frame a step; `frames/0`, `frames/1`, ... come out, so a later resume decodes only what is missing."""

    semantics = "shapes.decode_vae/1"
    peak_bytes = 32 * _MIB

    def steps(self, context: LoopContext) -> int:
        return LATENT_FRAMES

    def writes(self, state: LoopState) -> tuple[str, ...]:
        return (f"frames/{state.step}",)

    def plan(self, state: LoopState) -> WorkPlan:
        return replace(super().plan(state), reads=state.inputs)


class Render(Counted):
    semantics = "shapes.render/1"
    peak_bytes = 64 * _MIB


LOOPS: dict[str, Loop] = {
    loop.semantics: loop for loop in (kind("shapes") for kind in (EncodeText, Denoise, DecodeVae, Render))
}
