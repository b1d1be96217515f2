"""The cards of Wan 2.1, read off a checkpoint: whatever the directory holds, 1.3B or 14B, is what the card says."""

from typing import Any

from cards import lora, solvers
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

TEXT_TOKENS = 512
"""What every prompt is padded to, and may have at most."""

PRESETS = (Preset(832, 480, 3.0), Preset(480, 832, 3.0), Preset(1280, 720, 5.0), Preset(720, 1280, 5.0))
"""With the flow shifts of Wan 2.1's own configuration (wan/configs and generate.py)."""

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

FLOW_UNIPC = ParitySpec(
    reference="wan/utils/fm_solvers_unipc.py of Wan 2.1: its timesteps and noise levels, as restated in "
    "tests/cards/test_solvers.py; the steps between them are those of diffusers.UniPCMultistepScheduler",
    rung="C0",
)
"""Of the scheduler alone: no clip has been held against one of Wan's own code."""

PARTS = ("tokenizer", "text_encoder", "transformer", "scheduler", "vae")


def text_to_video(
    name: str, checkpoint: Checkpoint, precision: Precision, solver: str, policy: str = "cfg"
) -> ModelCard:
    """Raises BadCheckpoint."""
    checkpoint.require(*PARTS)
    denoise = semantics(solver, policy)
    components = {part: spec for part, spec in checkpoint.components(precision).items() if part in PARTS}
    return ModelCard(
        name=name,
        family="wan",
        version="2.1",
        task="text_to_video",
        components=components,
        loops=_loops(denoise, solver),
        recipe=RecipeSpec(
            method="flow_matching",
            data="as published",
            assumes_loop={"denoise": denoise},
            assumes_precision=precision,
            steps=Range(1, 1000, 50),
            guidance=Range(1, 20, 5),
            shift=PRESETS[0].shift,
        ),
        parity=FLOW_UNIPC if solver == "flow_unipc" else ParitySpec(reference="diffusers.WanPipeline", rung="C0"),
        output=output(checkpoint),
        program=Program(
            nodes=(
                Node(name="encode", loop="encode_text", outputs=("text", "negative")),
                Node(
                    name="denoise",
                    loop="denoise",
                    inputs={"text": "encode.text", "negative": "encode.negative", "lora": "request.lora"},
                    outputs=("latent",),
                ),
                Node(name="decode", loop="decode_vae", inputs={"latent": "denoise.latent"}, outputs=("frames",)),
                Node(name="render", loop="render", inputs={"frames": "decode.frames"}),
            ),
            artifacts=("video.mp4", "contact_sheet.png"),
        ),
        prompt_limit=10_000,
        inputs=lora.INPUTS,
    )


def semantics(solver: str, policy: str) -> str:
    return f"wan.{solver}.{policy}/1"


def _loops(denoise: str, solver: str) -> dict[str, LoopSpec]:
    components = ("transformer", "scheduler")
    return {
        "encode_text": LoopSpec(semantics="wan.encode_text/1", components=("tokenizer", "text_encoder")),
        "denoise": LoopSpec(semantics=denoise, components=components, snapshot_every=SNAPSHOT_EVERY)
        if solver != "euler"
        else LoopSpec(semantics=denoise, components=components),
        "decode_vae": LoopSpec(semantics="wan.decode_vae/1", components=("vae",), snapshot_every=1 << 30),
        "render": LoopSpec(semantics="wan.render/1"),
    }


def output(checkpoint: Checkpoint) -> OutputSpec:
    space, time = scale_of(checkpoint.parts["vae"].config())
    patch = checkpoint.parts["transformer"].config().get("patch_size", (1, 2, 2))
    canvas = Canvas(
        multiple=space * patch[1],
        most_pixels=max(preset.width * preset.height for preset in PRESETS),
        presets=PRESETS,
        frames_multiple=time,
        most_frames=81,
    )
    return OutputSpec(width=PRESETS[0].width, height=PRESETS[0].height, frames=81, fps=16, canvas=canvas)


def scale_of(vae: dict[str, Any]) -> tuple[int, int]:
    """Pixels and frames per latent."""
    return int(vae.get("scale_factor_spatial", 8)), int(vae.get("scale_factor_temporal", 4))


def solver_of(checkpoint: Checkpoint) -> str:
    """The solver that the checkpoint was published with. Raises BadCheckpoint."""
    checkpoint.require("scheduler")
    scheduler = checkpoint.parts["scheduler"]
    if scheduler.class_name not in solvers.DEFAULTS:
        raise BadCheckpoint(
            scheduler.folder, f"{scheduler.class_name} is no solver here; there are {', '.join(solvers.DEFAULTS)}"
        )
    return solvers.DEFAULTS[scheduler.class_name]
