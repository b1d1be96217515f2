"""The cards of Wan, read off a checkpoint: whatever the directory holds, 1.3B or 14B, is what the card says.

Four kinds: from text or from an image too, with one transformer (Wan 2.1) or an expert each for high and for low noise
(Wan 2.2 A14B).
"""

from typing import Any

from msgspec import UNSET

from cards import lora
from cards.card import (
    REQUEST,
    Canvas,
    Experts,
    InputSpec,
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
from cards.extensions.loops import enabled
from cards.wan import published

TEXT_TOKENS = 512
"""What every prompt is padded to, and may have at most."""

POLICIES = {"sequential": "cfg", "batched": "cfg_batched"}
"""How the branches of guidance are evaluated, by the value of the option."""

BY_ROW = (
    "patch_embedding",
    "condition_embedder.time_embedder.linear_1",
    "condition_embedder.time_embedder.act",
    "condition_embedder.time_embedder.linear_2",
    "condition_embedder.act_fn",
    "condition_embedder.time_proj",
)
"""The transformer's modules that are not batch invariant on a CPU, as `cards.invariant.offenders` finds them; the two
activations are so at widths that are no multiple of a vector."""

LEAST_TOKENS = 64
"""From which on two samples share a forward. Of six tokens a sample no matrix product is batch invariant, of twelve all
were; a clip of one frame at 480p has 1560.
"""

SNAPSHOT_EVERY = 8
"""A step of UniPC leaves four latents; its own output is half of one, and the rest follows from it."""

WANS_LEVELS = "at the noise levels of Wan's own wan/utils/fm_solvers_unipc.py, restated in cards/wan/reference.py"
"""What `flow_unipc` is held to: the pipeline and the steps of diffusers. Wan's own code is not run."""

PARTS = ("tokenizer", "text_encoder", "transformer", "scheduler", "vae")
CLIP = ("image_encoder", "image_processor")
LOW_NOISE = "transformer_2"
FROM_IMAGE = "WanImageToVideoPipeline"


def video(
    name: str, checkpoint: Checkpoint, precision: Precision, solver: str, policy: str = "cfg", interceptor: str = "none"
) -> ModelCard:
    """Raises BadCheckpoint."""
    checkpoint.require(*PARTS)
    image, boundary = checkpoint.pipeline == FROM_IMAGE, checkpoint.settings.get("boundary_ratio")
    sees = image and checkpoint.parts["transformer"].config().get("image_dim") is not None
    if checkpoint.settings.get("expand_timesteps"):
        raise BadCheckpoint(checkpoint.root, "expand_timesteps is set (Wan 2.2 TI2V 5B), which no card here does")
    parts = (*PARTS, *(CLIP if sees else ()), *((LOW_NOISE,) if boundary is not None else ()))
    checkpoint.require(*parts)
    about = published.of(image=image, experts=boundary is not None)
    denoise = semantics(solver, policy, image=image, experts=boundary is not None)
    return ModelCard(
        name=name,
        family="wan",
        version=about.version,
        task="image_to_video" if image else "text_to_video",
        components={part: spec for part, spec in checkpoint.components(precision).items() if part in parts},
        loops=_loops(denoise, solver, interceptor, parts, image=image),
        recipe=RecipeSpec(
            method="flow_matching",
            data="as published",
            assumes_loop={"denoise": denoise},
            assumes_precision=precision,
            steps=Range(1, 1000, about.steps),
            guidance=Range(1, 20, about.guidance),
            shift=about.presets[0].shift,
            experts=UNSET if boundary is None else Experts(boundary=boundary, guidance=about.low_noise_guidance),
        ),
        parity=ParitySpec(
            reference=f"diffusers.{checkpoint.pipeline}{f' {WANS_LEVELS}' if solver == 'flow_unipc' else ''}", rung="C1"
        ),
        output=output(checkpoint, about.presets),
        program=_program(("condition", *(("image_tokens",) if sees else ())) if image else ()),
        prompt_limit=10_000,
        inputs={"image": InputSpec(kind="image"), **lora.INPUTS} if image else lora.INPUTS,
    )


def semantics(solver: str, policy: str, *, image: bool, experts: bool) -> str:
    """Of the denoising loop: `cfg2` is guidance with a scale for each of two experts."""
    guidance = policy.replace("cfg", "cfg2") if experts else policy
    return f"wan.{'i2v.' if image else ''}{solver}.{guidance}/1"


def _program(from_image: tuple[str, ...]) -> Program:
    """`from_image` is what the image is encoded to, if there is one."""
    pictured = Node(name="encode_image", loop="encode_image", inputs={"image": f"{REQUEST}.image"}, outputs=from_image)
    conditions = {name: f"encode_image.{name}" for name in from_image}
    adapters = {lora.INPUT: f"{REQUEST}.{lora.INPUT}"}
    return Program(
        nodes=(
            Node(name="encode", loop="encode_text", outputs=("text", "negative")),
            *((pictured,) if from_image else ()),
            Node(
                name="denoise",
                loop="denoise",
                inputs={"text": "encode.text", "negative": "encode.negative", **conditions, **adapters},
                outputs=("latent",),
            ),
            Node(name="decode", loop="decode_vae", inputs={"latent": "denoise.latent"}, outputs=("frames",)),
            Node(name="render", loop="render", inputs={"frames": "decode.frames"}),
        ),
        artifacts=("video.mp4", "contact_sheet.png"),
    )


def _loops(denoise: str, solver: str, interceptor: str, parts: tuple[str, ...], *, image: bool) -> dict[str, LoopSpec]:
    clip = tuple(part for part in CLIP if part in parts)
    components = ("transformer", *((LOW_NOISE,) if LOW_NOISE in parts else ()), "scheduler")
    encode_image = LoopSpec(semantics=f"wan.encode_image{'.clip' if clip else ''}/1", components=("vae", *clip))
    derives = solver != "euler" or interceptor != "none"
    return {
        "encode_text": LoopSpec(semantics="wan.encode_text/1", components=("tokenizer", "text_encoder")),
        **({"encode_image": encode_image} if image else {}),
        "denoise": LoopSpec(
            semantics=denoise,
            components=components,
            snapshot_every=SNAPSHOT_EVERY if derives else UNSET,
            points=UNSET if LOW_NOISE in parts else ("forward", "blocks"),  # what one expert left is not the other's
            interceptors=enabled(interceptor),
        ),
        "decode_vae": LoopSpec(semantics="wan.decode_vae/1", components=("vae",), snapshot_every=1 << 30),
        "render": LoopSpec(semantics="wan.render/1"),
    }


def output(checkpoint: Checkpoint, presets: tuple[Preset, ...]) -> OutputSpec:
    space, time = scale_of(checkpoint.parts["vae"].config())
    patch = checkpoint.parts["transformer"].config().get("patch_size", (1, 2, 2))
    canvas = Canvas(
        multiple=space * patch[1],
        most_pixels=max(preset.width * preset.height for preset in presets),
        presets=presets,
        frames_multiple=time,
        most_frames=81,
    )
    return OutputSpec(width=presets[0].width, height=presets[0].height, frames=81, fps=16, canvas=canvas)


def scale_of(vae: dict[str, Any]) -> tuple[int, int]:
    """Pixels and frames per latent."""
    return int(vae.get("scale_factor_spatial", 8)), int(vae.get("scale_factor_temporal", 4))


def most_side(checkpoint: Checkpoint) -> int:
    """In pixels: as many patches as the transformer has positions for."""
    space, _ = scale_of(checkpoint.parts["vae"].config())
    transformer = checkpoint.parts["transformer"].config()
    return int(transformer.get("rope_max_seq_len", 1024)) * space * int(transformer.get("patch_size", (1, 2, 2))[1])


def heads(checkpoint: Checkpoint) -> int:
    """Of the transformer's attention; of two experts, both have as many."""
    return int(checkpoint.parts["transformer"].config().get("num_attention_heads", 40))
