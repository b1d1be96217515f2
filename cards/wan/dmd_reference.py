"""The sampler of few-step students written down once more, as one plain loop over the modules of diffusers."""

import numpy as np
import torch
from torch import Tensor

from cards import canvas, sampling
from cards.card import ModelCard, Precision
from cards.checkpoint import Checkpoint
from cards.reference import Steps, parts
from cards.request import ResolvedRequest
from cards.wan.card import TEXT_TOKENS
from cards.wan.reference import Given, decoded, pipeline


@torch.inference_mode()
def outputs(
    checkpoint: Checkpoint, precision: Precision, card: ModelCard, request: ResolvedRequest, given: Given
) -> dict[str, Tensor]:
    """The latent (1, C, F, H, W) after each step, and the frames of each latent frame, uint8 (T, H', W', 3)."""
    assert card.output.canvas
    assert card.recipe.timesteps
    made = pipeline(checkpoint, precision, request, given)
    transformer = made.transformer
    text, _ = made.encode_prompt(request.prompt, do_classifier_free_guidance=False, max_sequence_length=TEXT_TOKENS)
    width, height, frames = canvas.pixels(request, card.output)
    space, time = made.vae_scale_factor_spatial, made.vae_scale_factor_temporal
    shape = (1, made.vae.config.z_dim, (frames - 1) // time + 1, height // space, width // space)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(request.seed))
    levels = [level(timestep, card.recipe.shift) for timestep in card.recipe.timesteps]
    steps = Steps("denoise", latent="x")
    for step, (timestep, sigma) in enumerate(zip(card.recipe.timesteps, levels, strict=True)):
        v = transformer(x.to(transformer.dtype), torch.tensor([timestep]), text.to(transformer.dtype)).sample
        x = (x.double() - sigma * v.double()).float()
        if step + 1 < len(levels):
            seed = sampling.noise_seed(request.seed, loop="denoise", step=step + 1, purpose="noise")
            noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
            s = torch.tensor(levels[step + 1])
            x = (1 - s) * x + s * noise
        steps.keep(step, {"x": x})
    return steps.kept | dict(parts("decode.frames", decoded(made, x), card.output.canvas))


def level(timestep: int, shift: float) -> float:
    """The shift of Esser et al. 2024 on a grid of a thousand, in float32; that of the nearest timestep."""
    grid = np.arange(1, 1001, dtype=np.float32) / np.float32(1000)
    shifted = np.float32(shift) * grid / (1 + np.float32(shift - 1) * grid)
    return float(shifted[np.abs(shifted * 1000 - timestep).argmin()])
