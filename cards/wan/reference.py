"""diffusers' own pipeline on the same checkpoint and request."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import WanPipeline
from torch import Tensor

from cards import canvas, media
from cards.card import ModelCard, Precision
from cards.request import ResolvedRequest
from cards.solvers import shifted
from cards.wan.card import TEXT_TOKENS


def outputs(root: Path, precision: Precision, request: ResolvedRequest, card: ModelCard) -> Mapping[str, Tensor]:
    """The final latent (1, C, F, H, W) and the frames of each latent frame, uint8 (T, H', W', 3)."""
    assert card.output.canvas
    width, height, frames = canvas.pixels(request, card.output)
    pipeline = WanPipeline.from_pretrained(root, dtype=getattr(torch, precision), local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)
    pipeline.scheduler = shifted(pipeline.scheduler, card.output.canvas.shift(width, height))

    experts = card.recipe.experts

    def run(output_type: str) -> Any:
        return pipeline(
            prompt=request.prompt,
            negative_prompt=request.negative_prompt,
            width=width,
            height=height,
            num_frames=frames,
            num_inference_steps=request.steps,
            guidance_scale=request.guidance,
            guidance_scale_2=experts.guidance if experts else None,
            max_sequence_length=TEXT_TOKENS,
            generator=torch.Generator().manual_seed(request.seed),
            output_type=output_type,
        ).frames

    latent: Tensor = run("latent")
    [clip] = run("pil")
    parts = media.pixels(clip).split([1, *[card.output.canvas.frames_multiple] * (latent.shape[2] - 1)])
    return {"denoise.latent": latent, **{f"decode.frames/{index}": part.clone() for index, part in enumerate(parts)}}
