"""The loops of Wan: encode the prompts, denoise, decode latent frame by latent frame, render. Data only, no torch."""

from collections.abc import Mapping

from msgspec.structs import replace

from cards import canvas, lora
from cards.card import ModelCard
from cards.counted import Counted, Simple, fps
from cards.extensions.loops import with_interceptors
from cards.guidance import ClassifierFree, GuidancePolicy
from cards.loop import Loop, LoopContext, LoopState, StepOutput
from cards.solvers import SOLVERS
from cards.wire import Scalar, TensorRef, WorkPlan

GUIDANCE: Mapping[str, GuidancePolicy] = {
    "cfg": ClassifierFree("text", "negative"),
    "cfg_batched": ClassifierFree("text", "negative", together=True),
}


class Denoise(Counted):
    """Flow matching under classifier-free guidance. A step makes `velocity`; what the solver makes of it follows.

    Which of two experts runs a step follows from its time on the shifted schedule and the scalar `boundary`.
    """

    together = True

    def __init__(self, instance: str, semantics: str, solver: str, policy: str) -> None:
        super().__init__(instance)
        self.semantics = semantics
        self._policy = policy
        self._name = solver
        self._solver = SOLVERS[solver]

    def steps(self, context: LoopContext) -> int:
        return context.request.steps

    def scalars(self, context: LoopContext) -> dict[str, Scalar]:
        request, output, recipe = context.request, context.card.output, context.card.recipe
        width, height, _ = canvas.pixels(request, output)
        scalars: dict[str, Scalar] = {
            "seed": request.seed,
            "guidance": request.guidance,
            "shift": output.canvas.shift(width, height) if output.canvas else recipe.shift,
            **_size(context),
            "solver": self._name,
            "policy": self._policy,
            **lora.strengths(request.loras),
        }
        if recipe.experts:
            scalars |= {"boundary": recipe.experts.boundary, "guidance_2": recipe.experts.guidance}
        return scalars

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
        return fps(context)

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


def prompts(context: LoopContext) -> dict[str, Scalar]:
    return {"prompt": context.request.prompt, "negative_prompt": context.request.negative_prompt}


def prompt(context: LoopContext) -> dict[str, Scalar]:
    return {"prompt": context.request.prompt}


def _size(context: LoopContext) -> dict[str, Scalar]:
    return dict(zip(("width", "height", "frames"), canvas.pixels(context.request, context.card.output), strict=True))


def loops(card: ModelCard, solver: str, policy: str = "cfg") -> dict[str, Loop]:
    assert card.output.canvas
    made: tuple[Loop, ...] = (
        Simple(card.name, "wan.encode_text/1", ("text", "negative"), prompts, feature=True),
        *(
            # the picture as a latent clip that begins with it; with CLIP also what an image encoder sees in it
            Simple(card.name, card.loops[node.loop].semantics, node.outputs, _size, feature=True)
            for node in card.program.nodes
            if node.loop == "encode_image"
        ),
        *with_interceptors(
            Denoise(card.name, card.loops["denoise"].semantics, solver, policy),
            card.loops["denoise"],
            GUIDANCE[policy].branches,
        ),
        DecodeVae(card.name, card.output.canvas.frames_multiple),
        Simple(card.name, "wan.render/1", scalars=fps),
    )
    return {loop.semantics: loop for loop in made}
