"""Few-step students of Wan, distilled by distribution matching (DMD2, Yin et al. 2024) as FastVideo's FastWan is.

A step asks the transformer once, without guidance, what the data is, and noises that again to the level of the next
step with fresh noise. The levels are those that the student was distilled at; at others its weights are wrong. Data
only, no torch.
"""

from msgspec import UNSET
from msgspec.structs import replace

from cards import canvas, lora
from cards.card import LoopSpec, ModelCard, ParitySpec, Range, RecipeSpec
from cards.checkpoint import Checkpoint
from cards.counted import Counted, Simple
from cards.family import Notice, no_guidance
from cards.loop import Loop, LoopContext, LoopState
from cards.model import Model
from cards.request import ResolvedRequest
from cards.wan.loops import prompt
from cards.wire import Scalar, TensorRef, WorkPlan

PIPELINE = "WanDMDPipeline"
"""What the model index of such a checkpoint names. diffusers has no class of that name, and none is needed."""

FASTWAN = (1000, 757, 522)
"""The timesteps of FastWan2.1-T2V-1.3B, of 1000 that are shifted already."""

SHIFT = 8.0

SEMANTICS = "wan.dmd/1"
ENCODE_PROMPT = "wan.encode_prompt/1"


def asked(model: Model, checkpoint: Checkpoint) -> bool:
    return checkpoint.pipeline == PIPELINE or model.options.get("recipe") == "dmd"


def student(base: ModelCard, timesteps: tuple[int, ...] = FASTWAN) -> ModelCard:
    """The card of a student of what `base` is the card of."""
    nodes = {node.name: node for node in base.program.nodes}
    nodes["encode"] = replace(nodes["encode"], outputs=("text",))
    nodes["denoise"] = replace(nodes["denoise"], inputs={"text": "encode.text", "lora": "request.lora"})
    return replace(
        base,
        loops=base.loops
        | {
            "encode_text": replace(base.loops["encode_text"], semantics=ENCODE_PROMPT),
            "denoise": LoopSpec(semantics=SEMANTICS, components=("transformer", "vae")),
        },
        recipe=RecipeSpec(
            method="dmd",
            data="as published",
            assumes_loop={"denoise": SEMANTICS},
            assumes_precision=base.recipe.assumes_precision,
            steps=Range(len(timesteps), len(timesteps), len(timesteps)),
            guidance=Range(1, 1, 1),
            shift=SHIFT,
            timesteps=timesteps,
        ),
        parity=ParitySpec(
            reference="a plain loop over diffusers.WanTransformer3DModel (cards/wan/dmd_reference.py): diffusers has "
            "no pipeline of it, and FastVideo's own draws its noise from one generator after another",
            rung="C1",
        ),
        program=replace(base.program, nodes=tuple(nodes.values())),
    )


class DenoiseDmd(Counted):
    """The state is the latent, in float32, and nothing else."""

    semantics = SEMANTICS
    together = True

    def steps(self, context: LoopContext) -> int:
        return context.request.steps

    def scalars(self, context: LoopContext) -> dict[str, Scalar]:
        width, height, frames = canvas.pixels(context.request, context.card.output)
        recipe = context.card.recipe
        assert recipe.timesteps is not UNSET
        levels = {f"timestep/{step}": timestep for step, timestep in enumerate(recipe.timesteps)}
        about = {"seed": context.request.seed, "width": width, "height": height, "frames": frames}
        return {**about, "shift": recipe.shift, **levels, **lora.strengths(context.request.loras)}

    def plan(self, state: LoopState) -> WorkPlan:
        return replace(super().plan(state), kind="denoise_dmd")

    def writes(self, state: LoopState) -> tuple[str, ...]:
        return ("latent",)

    def finalize(self, state: LoopState) -> dict[str, TensorRef]:
        return {"latent": state.tensors["latent"]}


def loops(card: ModelCard) -> tuple[Loop, ...]:
    return Simple(card.name, ENCODE_PROMPT, ("text",), prompt, feature=True), DenoiseDmd(card.name)


def notices(request: ResolvedRequest) -> tuple[Notice, ...]:
    return no_guidance(request, "is not used: a student runs without guidance")
