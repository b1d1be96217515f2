"""The cards of LTX-2 and LTX-2.3: video with sound, in two distilled stages or in one under full guidance."""

from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace

from cards.card import (
    Canvas,
    LoopSpec,
    ModalityGuidance,
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

PARTS = (
    "tokenizer",
    "text_encoder",
    "connectors",
    "transformer",
    "scheduler",
    "vae",
    "audio_vae",
    "vocoder",
)
TEXT_TOKENS = 1024
"""What every prompt is padded to, and may have at most, where the tokenizer has no lower limit."""

UPSAMPLER = "latent_upsampler"
UPSAMPLED = 2
"""How much wider and higher the second stage's video is than the first's."""

RECIPES = ("distilled", "guided")
NEUTRAL = ModalityGuidance(scale=1, stg=0, modality=1, rescale=0)
GUIDANCES = {
    "distilled": {"video": NEUTRAL, "audio": NEUTRAL},
    "guided": {
        "video": ModalityGuidance(scale=3, stg=1, modality=3, rescale=0.7),
        "audio": ModalityGuidance(scale=7, stg=1, modality=3, rescale=0.7),
    },
}
"""Those of ltx-pipelines' constants, which are the defaults of diffusers 0.42 too: for the guided recipe only."""

SIGMAS = {
    "base": (1.0, 0.99375, 0.9875, 0.98125, 0.975, 0.909375, 0.725, 0.421875),
    "refine": (0.909375, 0.725, 0.421875),
}
"""DISTILLED_SIGMA_VALUES and STAGE_2_DISTILLED_SIGMA_VALUES of ltx-pipelines. A stage that does not begin with noise
begins with as much of it as its first level says."""

SIZES = ((768, 512), (512, 768), (1536, 1024), (1024, 1536))
PRESETS = tuple(Preset(width, height, 1.0) for width, height in SIZES)
MULTIPLE = 32
"""What diffusers' pipelines ask of a stage's width and height, whatever the VAE."""
FPS = 24
MOST_FRAMES = 20 * FPS + 1


class Version(Struct, frozen=True, kw_only=True):
    name: str
    steps: int
    """Of the guided recipe."""
    skipped: int
    """The block whose self-attention spatio-temporal guidance leaves out: the last one of a smaller model."""
    cross_timestep: bool
    """Whether a modality's cross-attention is modulated by the other's noise level."""


VERSIONS = {
    False: Version(name="2.0", steps=40, skipped=29, cross_timestep=False),
    True: Version(name="2.3", steps=30, skipped=28, cross_timestep=True),
}
"""By whether the prompt is modulated in the transformer's cross-attention, which began with 2.3."""


def version_of(checkpoint: Checkpoint) -> Version:
    config = _config(checkpoint, "transformer")
    found = VERSIONS[bool(config.get("cross_attn_mod"))]
    return replace(found, skipped=min(found.skipped, int(config.get("num_layers", 48)) - 1))


def text_to_video(name: str, checkpoint: Checkpoint, precision: Precision, recipe: str) -> ModelCard:
    """Raises BadCheckpoint."""
    distilled = recipe == "distilled"
    parts = (*PARTS, UPSAMPLER) if distilled else PARTS
    checkpoint.require(*parts)
    _check_patches(checkpoint)
    if distilled:
        _check_upsampler(checkpoint)
    loops = _loops(distilled)
    version, guidances = version_of(checkpoint), _guidances(checkpoint, recipe)
    return ModelCard(
        name=name,
        family="ltx2",
        version=version.name,
        task="text_to_video",
        components={part: spec for part, spec in checkpoint.components(precision).items() if part in parts},
        loops=loops,
        recipe=RecipeSpec(
            method="flow_matching" if not distilled else "distilled",
            data="as published",
            assumes_loop={
                name: spec.semantics for name, spec in loops.items() if name in ("base", "refine", "denoise")
            },
            assumes_precision=precision,
            steps=Range(8, 8, 8) if distilled else Range(2, 1000, version.steps),  # of 1 the level is NaN
            guidance=Range(1, 1, 1) if distilled else Range(1, 20, guidances["video"].scale),
            shift=1.0,
            guidances=guidances,
            sigmas=SIGMAS if distilled else UNSET,
        ),
        parity=ParitySpec(
            reference="diffusers.LTX2Pipeline, LTX2LatentUpsamplePipeline, LTX2Pipeline"
            if distilled
            else "diffusers.LTX2Pipeline",
            rung="C1",
        ),
        output=_output(checkpoint, distilled),
        program=Program(
            nodes=(*(_distilled() if distilled else _guided()), *_decoding("refine" if distilled else "denoise")),
            artifacts=("video.mp4", "audio.wav", "contact_sheet.png"),
        ),
        prompt_limit=10_000,
    )


def _guidances(checkpoint: Checkpoint, recipe: str) -> dict[str, ModalityGuidance]:
    """Without spatio-temporal guidance where the transformer cannot leave out a block: it would cost a forward a step,
    and change nothing.
    """
    able = _config(checkpoint, "transformer").get("perturbed_attn", False)
    return {name: one if able else replace(one, stg=0.0) for name, one in GUIDANCES[recipe].items()}


def _loops(distilled: bool) -> dict[str, LoopSpec]:
    denoising = ("transformer", "scheduler", "vae", "audio_vae")
    return {
        "encode_text": LoopSpec(semantics="ltx2.encode_text/1", components=("tokenizer", "text_encoder", "connectors")),
        **(
            {
                "base": LoopSpec(semantics="ltx2.base/1", components=denoising),
                "upsample": LoopSpec(semantics="ltx2.upsample/1", components=(UPSAMPLER, "vae", "audio_vae")),
                "refine": LoopSpec(semantics="ltx2.refine/1", components=denoising),
            }
            if distilled
            else {"denoise": LoopSpec(semantics="ltx2.guided/1", components=denoising)}
        ),
        "decode_video": LoopSpec(semantics="ltx2.decode_video/1", components=("vae",)),
        "decode_audio": LoopSpec(semantics="ltx2.decode_audio/1", components=("audio_vae", "vocoder")),
        "render": LoopSpec(semantics="ltx2.render/1"),
    }


TEXT = {name: f"encode.{name}" for name in ("text", "audio_text", "mask")}
ENCODE = Node(name="encode", loop="encode_text", outputs=tuple(TEXT))


def _distilled() -> tuple[Node, ...]:
    """One generator draws the noise of both stages: its state goes from one to the other."""
    return (
        ENCODE,
        Node(name="base", loop="base", inputs=TEXT, outputs=("latent", "audio", "generator")),
        Node(
            name="upsample",
            loop="upsample",
            inputs={"latent": "base.latent", "audio": "base.audio"},
            outputs=("latent", "audio"),
        ),
        Node(
            name="refine",
            loop="refine",
            inputs=TEXT | {"latent": "upsample.latent", "audio": "upsample.audio", "generator": "base.generator"},
            outputs=("latent", "audio"),
        ),
    )


def _guided() -> tuple[Node, ...]:
    return (ENCODE, Node(name="denoise", loop="denoise", inputs=TEXT, outputs=("latent", "audio")))


def _decoding(last: str) -> tuple[Node, ...]:
    return (
        Node(name="decode_video", loop="decode_video", inputs={"latent": f"{last}.latent"}, outputs=("frames",)),
        Node(name="decode_audio", loop="decode_audio", inputs={"audio": f"{last}.audio"}, outputs=("waveform",)),
        Node(
            name="render",
            loop="render",
            inputs={"frames": "decode_video.frames", "waveform": "decode_audio.waveform"},
        ),
    )


def _output(checkpoint: Checkpoint, distilled: bool) -> OutputSpec:
    canvas = Canvas(
        multiple=MULTIPLE * (UPSAMPLED if distilled else 1),
        most_pixels=max(width * height for width, height in SIZES),
        presets=PRESETS,
        frames_multiple=_frames_per_latent(_config(checkpoint, "vae")),
        most_frames=MOST_FRAMES,
    )
    width, height = SIZES[2 if distilled else 0]
    rate = int(_config(checkpoint, "vocoder").get("output_sampling_rate", 24_000))
    return OutputSpec(width=width, height=height, frames=121, fps=FPS, canvas=canvas, sample_rate=rate)


def text_tokens(tokenizer: dict[str, Any]) -> int:
    return int(min(TEXT_TOKENS, tokenizer.get("model_max_length", TEXT_TOKENS)))


def most_side(transformer: dict[str, Any]) -> int:
    """In pixels: where the positions end that the transformer scales to one."""
    return min(int(transformer.get(name, 2048)) for name in ("base_width", "base_height"))


def _frames_per_latent(vae: dict[str, Any]) -> int:
    """As AutoencoderKLLTX2Video reckons it."""
    given = vae.get("temporal_compression_ratio")
    scaling = vae.get("spatio_temporal_scaling", (True, True, True, True))
    return int(given or vae.get("patch_size_t", 1) * 2 ** sum(scaling))


def _check_patches(checkpoint: Checkpoint) -> None:
    config = _config(checkpoint, "transformer")
    if sizes := {config.get("patch_size", 1), config.get("patch_size_t", 1)} - {1}:
        raise BadCheckpoint(checkpoint.parts["transformer"].folder, f"has patches of {sizes} latents; here it is one")


def _check_upsampler(checkpoint: Checkpoint) -> None:
    config = _config(checkpoint, UPSAMPLER)
    scale = config.get("rational_spatial_scale", 2.0) if config.get("use_rational_resampler", True) else 2.0
    if scale != UPSAMPLED or config.get("temporal_upsample") or not config.get("spatial_upsample", True):
        raise BadCheckpoint(
            checkpoint.parts[UPSAMPLER].folder, f"is no upsampler by {UPSAMPLED} in width and height and nothing else"
        )


def _config(checkpoint: Checkpoint, part: str) -> dict[str, Any]:
    checkpoint.require(part)
    return checkpoint.parts[part].config()
