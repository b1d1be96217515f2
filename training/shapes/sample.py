"""Plain sampling with the modules themselves: the reference that a served job is held against."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cards import sampling
from cards.shapes.model import CONFIG, Codec, TextEncoder, Transformer, load
from cards.shapes.vocabulary import tokenize


@dataclass(frozen=True)
class Model:
    text_encoder: TextEncoder
    transformer: Transformer
    codec: Codec


def load_model(path: Path) -> Model:
    text_encoder, transformer, codec = (load(path, name) for name in ("text_encoder", "transformer", "vae"))
    assert isinstance(text_encoder, TextEncoder)
    assert isinstance(transformer, Transformer)
    assert isinstance(codec, Codec)
    return Model(text_encoder, transformer, codec)


@torch.no_grad()
def sample(
    model: Model,
    prompts: Sequence[str],
    seeds: Sequence[int],
    *,
    steps: int = CONFIG.steps,
    guidance: float = CONFIG.guidance,
    shift: float = CONFIG.shift,
    given_BCFHW: Tensor | None = None,
) -> Tensor:
    """Latents (B, C, F, H, W) by Euler steps with classifier-free guidance, after the given first latent frames.

    Both branches of all clips are one forward; a served job's clips and branches are forwards of one. The bits agree.
    """
    text_BLD = model.text_encoder(torch.tensor([tokenize(prompt)[0] for prompt in [*prompts, *[""] * len(prompts)]]))
    latent_BCFHW = torch.cat([_noise_1CFHW(seed) for seed in seeds])
    given = 0 if given_BCFHW is None else given_BCFHW.shape[2]
    for step in range(steps):
        t, next_t = (sampling.flow_time(at, steps, shift) for at in (step, step + 1))
        if given_BCFHW is not None:
            latent_BCFHW[:, :, :given] = given_BCFHW
        t_BF = torch.full((len(prompts), CONFIG.latent_frames), t)
        t_BF[:, :given] = 0
        velocity = model.transformer(latent_BCFHW.repeat(2, 1, 1, 1, 1), t_BF.repeat(2, 1), text_BLD)
        prompted, unprompted = velocity.chunk(2)
        latent_BCFHW = sampling.euler(latent_BCFHW, sampling.guide(prompted, unprompted, guidance), t, next_t)
    if given_BCFHW is not None:
        latent_BCFHW[:, :, :given] = given_BCFHW
    return latent_BCFHW


def _noise_1CFHW(seed: int) -> Tensor:
    key = sampling.noise_seed(seed, loop="denoise", step=0, purpose="latent")
    return sampling.noise((1, *CONFIG.latent_shape), key)


@torch.no_grad()
def decode(codec: Codec, latent_CFHW: Tensor) -> NDArray[np.uint8]:
    """One clip's frames (T, height, width, 3), a latent frame at a time."""
    parts = [codec.decoder(latent_CFHW[None, :, index : index + 1])[0] for index in range(latent_CFHW.shape[1])]
    frames: NDArray[np.uint8] = (torch.cat(parts) * 255).round().to(torch.uint8).numpy()
    return frames
