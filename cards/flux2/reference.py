"""diffusers' own pipeline on the same checkpoint and request."""

import torch
from diffusers import Flux2KleinPipeline
from torch import Tensor

from cards import canvas, media
from cards.card import ModelCard, Precision
from cards.checkpoint import Checkpoint
from cards.reference import Steps
from cards.request import ResolvedRequest


def outputs(
    checkpoint: Checkpoint, precision: Precision, card: ModelCard, request: ResolvedRequest
) -> dict[str, Tensor]:
    """The latent (1, L, C) after each step, and the picture, uint8 (H, W, 3)."""
    width, height, _ = canvas.pixels(request, card.output)
    pipeline = Flux2KleinPipeline.from_pretrained(
        checkpoint.root, dtype=getattr(torch, precision), local_files_only=True
    )
    pipeline.set_progress_bar_config(disable=True)
    with torch.no_grad():  # the pipeline has no negative prompt of its own, and takes the encoded one
        negative, _ = pipeline.encode_prompt(request.negative_prompt)
    steps = Steps("denoise", latent="latents")
    pictures = pipeline(
        prompt=request.prompt,
        negative_prompt_embeds=negative,
        width=width,
        height=height,
        num_inference_steps=request.steps,
        guidance_scale=request.guidance,
        generator=torch.Generator().manual_seed(request.seed),
        callback_on_step_end=steps,
    ).images
    [image] = media.pixels(pictures)
    return steps.kept | {"decode.image": image}
