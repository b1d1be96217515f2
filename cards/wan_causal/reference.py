"""Self-Forcing's causal_inference.py in few words, over diffusers' own forward: an attention processor keeps the keys
and values of all frames, and each chunk attends to those that are cut out of that list.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from torch import Tensor

from cards import canvas
from cards.card import ModelCard, Precision
from cards.checkpoint import Checkpoint
from cards.reference import at, parts
from cards.request import ResolvedRequest
from cards.sampling import noise, noise_seed
from cards.wan.card import TEXT_TOKENS
from cards.wan.reference import decoded, pipeline
from cards.wan_causal.window import CHUNK

SIGMAS = torch.tensor([1.0, 0.9375, 5 / 6, 0.625])
"""The noise levels 1, 0.75, 0.5 and 0.25 under a shift of 5."""

STEPS = len(SIGMAS) + 2
"""Of a chunk: after denoising it a job takes its keys and values, and decodes it."""

KeysValues: TypeAlias = tuple[Tensor, Tensor]


def outputs(
    checkpoint: Checkpoint, precision: Precision, card: ModelCard, window: int, sink: int, request: ResolvedRequest
) -> dict[str, Tensor]:
    """What each step leaves of a chunk (1, C, F, H, W), and the frames of each, uint8 (T, H', W', 3).

    Of a clip that goes on from another the same as a whole, without single steps: the job has fewer.
    """
    assert card.output.canvas
    made = pipeline(checkpoint, precision, request, {})
    width, height, frames = canvas.pixels(request, card.output)
    space, time = made.vae_scale_factor_spatial, made.vae_scale_factor_temporal
    shape = (1, made.transformer.config.in_channels, CHUNK, height // space, width // space)
    chunks = ((frames - 1) // time + 1) // CHUNK
    with torch.inference_mode():
        steps, clean = _rollout(made, request, shape, chunks, window, sink)
        clip = decoded(made, torch.cat(clean, dim=2))
    latents = {f"rollout.latent/{chunk}": latent for chunk, latent in enumerate(clean)}
    whole = latents | dict(parts("rollout.frames", clip, card.output.canvas))
    return whole if request.continues else steps | whole


def _rollout(
    made: Any, request: ResolvedRequest, shape: tuple[int, ...], chunks: int, window: int, sink: int
) -> tuple[dict[str, Tensor], list[Tensor]]:
    transformer = made.transformer
    text, _ = made.encode_prompt(request.prompt, do_classifier_free_guidance=False, max_sequence_length=TEXT_TOKENS)
    text = text.to(transformer.dtype)
    kept: dict[str, Tensor] = {}
    clean: list[Tensor] = []
    cached: list[list[KeysValues]] = []
    for chunk in range(chunks):
        evicted = max(0, len(cached) + CHUNK - window)
        processors = _attend_to(transformer, cached[:sink] + cached[sink + evicted :], shape, chunk)
        x = _drawn(shape, request.seed, chunk, 0).to(transformer.dtype)
        for index, sigma in enumerate(SIGMAS):
            velocity = transformer(x, (1000 * sigma).expand(1), text, return_dict=False)[0]
            x0 = (x.double() - sigma.double() * velocity.double()).to(x.dtype)
            if index + 1 < len(SIGMAS):
                level, again = SIGMAS[index + 1], _drawn(shape, request.seed, chunk, index + 1).to(x.dtype)
                x = ((1 - level) * x0.float() + level * again.float()).to(x.dtype)
                kept[at("rollout.x", STEPS * chunk + index)] = x
        clean.append(x0)
        transformer(x0, torch.zeros(1), text, return_dict=False)
        cached += _by_frame([one.made for one in processors])
    return kept, clean


def _drawn(shape: tuple[int, ...], seed: int, chunk: int, index: int) -> Tensor:
    return noise(shape, noise_seed(seed, loop="rollout", step=chunk, purpose=f"noise/{index}"))


class Remembering:
    """diffusers' WanAttnProcessor of self-attention, after frames whose keys and values are given."""

    _attention_backend = None
    _parallel_config = None

    def __init__(self, past: Sequence[KeysValues], rotary: KeysValues) -> None:
        self._past = past
        self._rotary = rotary
        self.made: KeysValues

    def __call__(self, attn: Any, hidden_states: Tensor, *_: Any) -> Tensor:
        heads = (attn.heads, -1)
        query = self._rotated(attn.norm_q(attn.to_q(hidden_states)).unflatten(2, heads))
        key = self._rotated(attn.norm_k(attn.to_k(hidden_states)).unflatten(2, heads))
        value = attn.to_v(hidden_states).unflatten(2, heads)
        self.made = key, value
        keys, values = (torch.cat(one, dim=1) for one in zip(*self._past, (key, value), strict=True))
        attended = dispatch_attention_fn(query, keys, values)
        out: Tensor = attn.to_out[1](attn.to_out[0](attended.flatten(2, 3).type_as(query)))
        return out

    def _rotated(self, heads: Tensor) -> Tensor:
        """Each pair of a head's values as one complex number, turned by the angle of its token."""
        (even, odd), (cosine, sine) = heads.unflatten(-1, (-1, 2)).unbind(-1), self._rotary
        cosine, sine = cosine[..., 0::2], sine[..., 1::2]
        turned = torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], dim=-1)
        return turned.flatten(-2).type_as(heads)


def _attend_to(
    transformer: Any, past: Sequence[list[KeysValues]], shape: tuple[int, ...], chunk: int
) -> list[Remembering]:
    """Set the processors of a chunk: frames are of the places that they have in the clip, not in the chunk."""
    frames = CHUNK * (chunk + 1)
    rotary = transformer.rope(torch.empty(shape[0], shape[1], frames, *shape[3:]))
    cosine, sine = (one.unflatten(1, (frames, -1))[:, -CHUNK:].flatten(1, 2) for one in rotary)
    made = [Remembering([frame[layer] for frame in past], (cosine, sine)) for layer, _ in enumerate(transformer.blocks)]
    for block, processor in zip(transformer.blocks, made, strict=True):
        block.attn1.set_processor(processor)
    return made


def _by_frame(layers: Sequence[KeysValues]) -> list[list[KeysValues]]:
    """For each frame of a chunk the keys and values of each layer."""
    cut = [(key.chunk(CHUNK, dim=1), value.chunk(CHUNK, dim=1)) for key, value in layers]
    return [[(keys[frame], values[frame]) for keys, values in cut] for frame in range(CHUNK)]
