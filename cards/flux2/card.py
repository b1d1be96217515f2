"""The cards of Flux 2 klein, read off a checkpoint: the base model, or the one that is distilled to few steps."""

from cards.card import (
    Canvas,
    LoopSpec,
    ModelCard,
    Node,
    OutputSpec,
    ParitySpec,
    Precision,
    Preset,
    Program,
    Range,
    RecipeSpec,
)
from cards.checkpoint import Checkpoint
from cards.errors import BadCheckpoint

PRESETS = (Preset(1024, 1024, 1.0), Preset(1360, 768, 1.0), Preset(768, 1360, 1.0))
"""The flow shift follows from the number of tokens and steps, not from a preset."""

MOST_PIXELS = 1 << 22

PARTS = ("tokenizer", "text_encoder", "transformer", "scheduler", "vae")

SCHEDULER = "FlowMatchEulerDiscreteScheduler"


def text_to_image(name: str, checkpoint: Checkpoint, precision: Precision) -> ModelCard:
    """Raises BadCheckpoint."""
    checkpoint.require(*PARTS)
    if (found := checkpoint.parts["scheduler"].class_name) != SCHEDULER:
        raise BadCheckpoint(checkpoint.parts["scheduler"].folder, f"{found} is not the {SCHEDULER} of Flux 2")
    components = {part: spec for part, spec in checkpoint.components(precision).items() if part in PARTS}
    conditions = conditions_of(checkpoint)
    return ModelCard(
        name=name,
        family="flux2",
        version="klein",
        task="text_to_image",
        components=components,
        loops={
            "encode_text": LoopSpec(semantics="flux2.encode_text/1", components=("tokenizer", "text_encoder")),
            "denoise": LoopSpec(semantics="flux2.euler.cfg/1", components=("transformer", "scheduler")),
            "decode_vae": LoopSpec(semantics="flux2.decode_vae/1", components=("vae",)),
        },
        recipe=recipe(precision, distilled=is_distilled(checkpoint)),
        parity=ParitySpec(reference="diffusers.Flux2KleinPipeline", rung="C1"),
        output=output(pixels_per_token(checkpoint)),
        program=Program(
            nodes=(
                Node(name="encode", loop="encode_text", outputs=conditions),
                Node(
                    name="denoise",
                    loop="denoise",
                    inputs={condition: f"encode.{condition}" for condition in conditions},
                    outputs=("latent",),
                ),
                Node(name="decode", loop="decode_vae", inputs={"latent": "denoise.latent"}, outputs=("image",)),
            ),
            artifacts=("image.png",),
        ),
        prompt_limit=10_000,
    )


def recipe(precision: Precision, *, distilled: bool) -> RecipeSpec:
    return RecipeSpec(
        method="step distillation of flow matching" if distilled else "flow_matching",
        data="as published",
        assumes_loop={"denoise": "flux2.euler.cfg/1"},
        assumes_precision=precision,
        steps=Range(1, 1000, 4 if distilled else 50),
        guidance=Range(1, 1, 1) if distilled else Range(1, 20, 4),
        shift=1.0,
    )


def output(multiple: int) -> OutputSpec:
    canvas = Canvas(multiple=multiple, most_pixels=MOST_PIXELS, presets=PRESETS, frames_multiple=1, most_frames=1)
    return OutputSpec(width=PRESETS[0].width, height=PRESETS[0].height, frames=1, fps=1, canvas=canvas)


def is_distilled(checkpoint: Checkpoint) -> bool:
    """Then there is no guidance, and nothing to guide away from."""
    return bool(checkpoint.settings.get("is_distilled", False))


def conditions_of(checkpoint: Checkpoint) -> tuple[str, ...]:
    return ("text",) if is_distilled(checkpoint) else ("text", "negative")


def pixels_per_token(checkpoint: Checkpoint) -> int:
    """In each direction: a token is two latents wide (diffusers' Flux2KleinPipeline)."""
    blocks: list[int] = checkpoint.parts["vae"].config().get("block_out_channels", [128, 256, 512, 512])
    return 1 << len(blocks)
