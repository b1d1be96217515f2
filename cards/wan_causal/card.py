"""The card of a self-forcing Wan 2.1: the weights of a causal student, in the modules and the layout of the base model.

How it is run is that of Huang et al. 2025 (Self Forcing: configs/self_forcing_dmd.yaml, pipeline/causal_inference.py),
but for the noise, which is keyed by chunk and step instead of drawn from one generator.
"""

from msgspec import UNSET
from msgspec.structs import replace

from cards.card import (
    InputSpec,
    LoopSpec,
    ModelCard,
    Node,
    OutputSpec,
    ParitySpec,
    Precision,
    Program,
    Range,
    RecipeSpec,
)
from cards.checkpoint import Checkpoint
from cards.wan import published
from cards.wan.card import output as wan_output
from cards.wan.card import scale_of
from cards.wan_causal.window import CHUNK

DENOISING_STEPS = (1000, 750, 500, 250)
"""Of a table of 1000, before the shift."""

SHIFT = 5.0

MOST_FRAMES = 21
"""Latent frames that the student was made for: what a window of all frames holds."""

PARTS = ("tokenizer", "text_encoder", "transformer", "vae")


def semantics(window: int, sink: int) -> str:
    return f"wan.self_forcing.window_{window}.sink_{sink}.keyed_noise/1"


def text_to_video(
    name: str, checkpoint: Checkpoint, precision: Precision, window: int, sink: int, *, bounded: bool
) -> ModelCard:
    """`window` and `sink` are in latent frames; a window that is `bounded` slides. Raises BadCheckpoint."""
    checkpoint.require(*PARTS)
    components = {part: spec for part, spec in checkpoint.components(precision).items() if part in PARTS}
    rollout = semantics(window, sink)
    return ModelCard(
        name=name,
        family="wan_causal",
        version="2.1",
        task="text_to_video",
        components=components,
        loops={
            "encode_text": LoopSpec(semantics="wan_causal.encode_text/1", components=("tokenizer", "text_encoder")),
            "rollout": LoopSpec(semantics=rollout, components=("transformer", "vae"), snapshot_every=1 << 30),
            "render": LoopSpec(semantics="wan.render/1"),
        },
        recipe=RecipeSpec(
            method="self_forcing",
            data="as published",
            assumes_loop={"rollout": rollout},
            assumes_precision=precision,
            steps=Range(len(DENOISING_STEPS), len(DENOISING_STEPS), len(DENOISING_STEPS)),
            guidance=Range(1, 1, 1),
            shift=SHIFT,
        ),
        parity=ParitySpec(
            reference="a plain loop after Self-Forcing's causal_inference.py, which is not run itself, over "
            "diffusers.WanTransformer3DModel (cards/wan_causal/reference.py)",
            rung="C1",
        ),
        output=output(checkpoint, bounded=bounded),
        program=Program(
            nodes=(
                Node(name="encode", loop="encode_text", outputs=("text",)),
                Node(
                    name="rollout",
                    loop="rollout",
                    inputs={"text": "encode.text", "past": "request.past"},
                    outputs=("latent", "frames"),
                ),
                Node(name="render", loop="render", inputs={"frames": "rollout.frames"}),
            ),
            artifacts=("video.mp4", "contact_sheet.png"),
        ),
        prompt_limit=10_000,
        inputs={"past": InputSpec(kind="output", required=False, output="rollout.latent")},
    )


def output(checkpoint: Checkpoint, *, bounded: bool) -> OutputSpec:
    """Whole chunks: the first is shorter by what the VAE makes of the first latent frame, which is one frame."""
    base = wan_output(checkpoint, published.TEXT.presets)
    assert base.canvas is not UNSET
    _, time = scale_of(checkpoint.parts["vae"].config())
    positions = int(checkpoint.parts["transformer"].config().get("rope_max_seq_len", 1024))
    most = positions // CHUNK * CHUNK if bounded else MOST_FRAMES
    canvas = replace(
        base.canvas,
        presets=tuple(replace(preset, shift=SHIFT) for preset in base.canvas.presets),
        frames_multiple=CHUNK * time,
        frames_first=(CHUNK - 1) * time + 1,
        most_frames=(most - 1) * time + 1,
    )
    return replace(base, canvas=canvas)
