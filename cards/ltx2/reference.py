"""diffusers' own pipelines on the same checkpoint and request: one, or the chain of three of its documentation."""

from typing import Any

import torch
from diffusers import LTX2LatentUpsamplePipeline, LTX2Pipeline
from diffusers.pipelines.ltx2 import LTX2LatentUpsamplerModel
from diffusers.pipelines.ltx2.utils import DISTILLED_SIGMA_VALUES, STAGE_2_DISTILLED_SIGMA_VALUES
from torch import Tensor

from cards import canvas, media
from cards.card import ModelCard, Precision
from cards.checkpoint import Checkpoint
from cards.ltx2.card import TEXT_TOKENS, UPSAMPLED, UPSAMPLER, version_of
from cards.reference import Steps
from cards.request import ResolvedRequest

LATENTS = {"latent": "latents", "audio": "audio_latents"}


def guided(
    checkpoint: Checkpoint, precision: Precision, card: ModelCard, request: ResolvedRequest
) -> dict[str, Tensor]:
    """The packed latents of video and sound after each step, the frames, uint8 (T, H, W, 3), and the sound (A, N)."""
    width, height, _ = canvas.pixels(request, card.output)
    pipeline, steps = _pipeline(checkpoint, precision), Steps("denoise", **LATENTS)
    made = pipeline(
        **_asked(pipeline, checkpoint, card, request),
        width=width,
        height=height,
        num_inference_steps=request.steps,
        callback_on_step_end=steps,
    )
    return steps.kept | _decoded(*made)


def distilled(
    checkpoint: Checkpoint, precision: Precision, card: ModelCard, request: ResolvedRequest
) -> dict[str, Tensor]:
    """The same of both stages, and what the first one hands on to the second."""
    width, height, _ = canvas.pixels(request, card.output)
    small = {"width": width // UPSAMPLED, "height": height // UPSAMPLED}
    pipeline = _pipeline(checkpoint, precision)
    pipeline.scheduler = type(pipeline.scheduler).from_config(
        pipeline.scheduler.config, use_dynamic_shifting=False, shift_terminal=None
    )
    upsampler = LTX2LatentUpsamplerModel.from_pretrained(
        checkpoint.parts[UPSAMPLER].folder, dtype=pipeline.dtype, local_files_only=True
    )
    asked = _asked(pipeline, checkpoint, card, request)
    base, refine = Steps("base", **LATENTS), Steps("refine", **LATENTS)
    latent, audio = pipeline(
        **asked,
        **small,
        sigmas=DISTILLED_SIGMA_VALUES,
        num_inference_steps=len(DISTILLED_SIGMA_VALUES),
        callback_on_step_end=base,
        output_type="latent",
    )
    [latent] = LTX2LatentUpsamplePipeline(pipeline.vae, upsampler)(
        latents=latent, **small, output_type="latent", return_dict=False
    )
    made = pipeline(
        **asked,
        width=width,
        height=height,
        latents=latent,
        audio_latents=audio,
        sigmas=STAGE_2_DISTILLED_SIGMA_VALUES,
        num_inference_steps=len(STAGE_2_DISTILLED_SIGMA_VALUES),
        noise_scale=STAGE_2_DISTILLED_SIGMA_VALUES[0],
        callback_on_step_end=refine,
    )
    handed_on = {"upsample.latent": latent, "upsample.audio": audio}
    return base.kept | handed_on | refine.kept | _decoded(*made)


def _pipeline(checkpoint: Checkpoint, precision: Precision) -> Any:
    made = LTX2Pipeline.from_pretrained(checkpoint.root, dtype=getattr(torch, precision), local_files_only=True)
    made.set_progress_bar_config(disable=True)
    made._callback_tensor_inputs = [*made._callback_tensor_inputs, "audio_latents"]
    return made


def _asked(pipeline: Any, checkpoint: Checkpoint, card: ModelCard, request: ResolvedRequest) -> dict[str, Any]:
    """What the request and the card say, in the words of the pipeline. One generator draws the noise of all stages."""
    assert card.recipe.guidances
    video, audio = card.recipe.guidances["video"], card.recipe.guidances["audio"]
    version = version_of(checkpoint)
    return {
        "prompt": request.prompt,
        "negative_prompt": request.negative_prompt,
        "max_sequence_length": min(TEXT_TOKENS, pipeline.tokenizer.model_max_length),
        "num_frames": canvas.pixels(request, card.output)[2],
        "frame_rate": float(card.output.fps),
        "guidance_scale": request.guidance,
        "stg_scale": video.stg,
        "modality_scale": video.modality,
        "guidance_rescale": video.rescale,
        "audio_guidance_scale": audio.scale,
        "audio_stg_scale": audio.stg,
        "audio_modality_scale": audio.modality,
        "audio_guidance_rescale": audio.rescale,
        "spatio_temporal_guidance_blocks": [version.skipped],
        "use_cross_timestep": version.cross_timestep,
        "generator": torch.Generator().manual_seed(request.seed),
        "callback_on_step_end_tensor_inputs": [*LATENTS.values()],
        "return_dict": False,
    }


def _decoded(video: Any, audio: Any) -> dict[str, Tensor]:
    [clip], [sound] = video, audio
    return {"decode_video.frames": media.pixels(clip), "decode_audio.waveform": sound.float()}
