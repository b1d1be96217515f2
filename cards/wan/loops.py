"""The loops of Wan: encode the prompts, denoise, decode latent frame by latent frame, render. Data only, no torch."""

from msgspec.structs import replace

from cards import canvas
from cards.card import ModelCard
from cards.counted import Counted
from cards.extensions.loops import with_interceptors
from cards.guidance import ClassifierFree, GuidancePolicy
from cards.loop import Loop, LoopContext, LoopState, StepOutput
from cards.solvers import SOLVERS
from cards.wire import Scalar, TensorRef, WorkPlan

GUIDANCE: GuidancePolicy = ClassifierFree("text", "negative")


class EncodeText(Counted):
    semantics = "wan.encode_text/1"

    def scalars(self, context: LoopContext) -> dict[str, Scalar]:
        return {"prompt": context.request.prompt, "negative_prompt": context.request.negative_prompt}

    def writes(self, state: LoopState) -> tuple[str, ...]:
        return ("text", "negative")


class Denoise(Counted):
    """Flow matching under classifier-free guidance. A step makes `velocity`; what the solver makes of it follows."""

    def __init__(self, instance: str, solver: str) -> None:
        super().__init__(instance)
        self.semantics = f"wan.{solver}.cfg/1"
        self._name = solver
        self._solver = SOLVERS[solver]

    def steps(self, context: LoopContext) -> int:
        return context.request.steps

    def scalars(self, context: LoopContext) -> dict[str, Scalar]:
        request, output = context.request, context.card.output
        width, height, frames = canvas.pixels(request, output)
        return {
            "seed": request.seed,
            "guidance": request.guidance,
            "shift": output.canvas.shift(width, height) if output.canvas else context.card.recipe.shift,
            "width": width,
            "height": height,
            "frames": frames,
            "solver": self._name,
        }

    def plan(self, state: LoopState) -> WorkPlan:
        derives = ("latent", *self._solver.remembers(state.step + 1, state.steps))
        return replace(super().plan(state), derives=derives, writes=("velocity", *derives))

    def advance(self, state: LoopState, output: StepOutput) -> LoopState:
        kept = {name: ref for name, ref in output.tensors.items() if name != "velocity"}
        return super().advance(state, StepOutput(kept, output.scalars))

    def finalize(self, state: LoopState) -> dict[str, TensorRef]:
        return {"latent": state.tensors["latent"]}


class DecodeVae(Counted):
    """One latent frame a step, the VAE's cache beside it: `frames/0`, `frames/1`, ... come out, a first one, then four.

    The cache is gigabytes at full size: it follows from the frames before and is made again when it is lost.
    """

    semantics = "wan.decode_vae/1"

    def __init__(self, instance: str, frames_multiple: int) -> None:
        super().__init__(instance)
        self._frames_multiple = frames_multiple

    def steps(self, context: LoopContext) -> int:
        return (canvas.pixels(context.request, context.card.output)[2] - 1) // self._frames_multiple + 1

    def scalars(self, context: LoopContext) -> dict[str, Scalar]:
        return {"fps": context.card.output.fps}

    def plan(self, state: LoopState) -> WorkPlan:
        cache = {name: ref for name, ref in state.tensors.items() if name == "cache"}
        derives = ("cache",) if state.step + 1 < state.steps else ()
        return replace(
            super().plan(state),
            reads=state.inputs | cache,
            derives=derives,
            writes=(f"frames/{state.step}", *derives),
        )

    def finalize(self, state: LoopState) -> dict[str, TensorRef]:
        return {name: ref for name, ref in state.tensors.items() if name != "cache"}


class Render(Counted):
    semantics = "wan.render/1"

    def scalars(self, context: LoopContext) -> dict[str, Scalar]:
        return {"fps": context.card.output.fps}


def loops(card: ModelCard, solver: str) -> dict[str, Loop]:
    assert card.output.canvas
    made: tuple[Loop, ...] = (
        EncodeText(card.name),
        *with_interceptors(Denoise(card.name, solver), card.loops["denoise"], GUIDANCE.branches),
        DecodeVae(card.name, card.output.canvas.frames_multiple),
        Render(card.name),
    )
    return {loop.semantics: loop for loop in made}
