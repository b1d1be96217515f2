"""Plain sampling with the modules themselves: the reference that a served job is held against."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cards import sampling
from cards.reference import Steps
from cards.request import ResolvedRequest
from cards.shapes.card import CARD
from cards.shapes.family import WEIGHTS
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


def reference(request: ResolvedRequest, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The latent (1, C, F, H, W) after each step, and the frames of each latent frame, uint8 (T, H, W, 3)."""
    model, steps = load_model(WEIGHTS), Steps("denoise", latent="latent")
    [latent_CFHW] = sample(
        model,
        [request.prompt],
        [request.seed],
        steps=request.steps,
        guidance=request.guidance,
        shift=CARD.recipe.shift,
        negative=request.negative_prompt,
        told=lambda step, latent_BCFHW: steps.keep(step, {"latent": latent_BCFHW}),
    )
    return steps.kept | {f"decode.frames/{index}": one for index, one in enumerate(_parts(model.codec, latent_CFHW))}


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
    negative: str = "",
    told: Callable[[int, Tensor], None] | None = None,
) -> Tensor:
    """Latents (B, C, F, H, W) by Euler steps with classifier-free guidance, after the given first latent frames.

    Both branches of all clips are one forward; a served job's clips and branches are forwards of one. The bits agree.
    `told` hears of the latents after each step.
    """
    words = [*prompts, *[negative] * len(prompts)]
    text_BLD = model.text_encoder(torch.tensor([tokenize(prompt)[0] for prompt in words]))
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
        guided = prompted if guidance == 1.0 else sampling.guide(prompted, unprompted, guidance)
        latent_BCFHW = sampling.euler(latent_BCFHW, guided, t, next_t)
        if told is not None:
            told(step, latent_BCFHW)
    if given_BCFHW is not None:
        latent_BCFHW[:, :, :given] = given_BCFHW
    return latent_BCFHW


def _noise_1CFHW(seed: int) -> Tensor:
    key = sampling.noise_seed(seed, loop="denoise", step=0, purpose="latent")
    return sampling.noise((1, *CONFIG.latent_shape), key)


def decode(codec: Codec, latent_CFHW: Tensor) -> NDArray[np.uint8]:
    """One clip's frames (T, height, width, 3)."""
    frames: NDArray[np.uint8] = torch.cat(_parts(codec, latent_CFHW)).numpy()
    return frames


@torch.no_grad()
def _parts(codec: Codec, latent_CFHW: Tensor) -> list[Tensor]:
    """A latent frame at a time."""
    latents = latent_CFHW[None].split(1, dim=2)
    return [(codec.decoder(one)[0] * 255).round().to(torch.uint8) for one in latents]
