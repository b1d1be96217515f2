"""Wan's transformer over one chunk of frames after others: keys and values of what came before go in and out as values.

The modules are those of diffusers' WanTransformer3DModel and their order is that of its `forward`, which it equals bit
for bit where nothing came before. B batch, C latent channels, F latent frames, H W latent height and width, L tokens,
D width, N heads.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from torch import Tensor

Rotary: TypeAlias = tuple[Tensor, Tensor]
KeysValues: TypeAlias = tuple[Tensor, Tensor]


def forward(
    transformer: Any,
    latent_BCFHW: Tensor,
    timestep_B: Tensor,
    text_BLD: Tensor,
    past: Sequence[Tensor] = (),
    start: int = 0,
) -> tuple[Tensor, list[KeysValues]]:
    """The velocity of frames `start` on, and by layer their keys and values, each (B, L, N, D / N).

    `past` holds keys and values (layers, 2, B, L, N, D / N) of the frames to attend to, oldest first. Keys are rotated
    to where their frame is in the whole clip.
    """
    rotary = _rotary(transformer, latent_BCFHW, start)
    hidden = transformer.patch_embedding(latent_BCFHW).flatten(2).transpose(1, 2).contiguous()
    embedded, modulation, text, _ = transformer.condition_embedder(timestep_B, text_BLD, None)
    modulation = modulation.unflatten(1, (6, -1))
    made = []
    for layer, block in enumerate(transformer.blocks):
        hidden, keys_values = _block(block, hidden, text, modulation, rotary, [one[layer] for one in past])
        made.append(keys_values)
    return _velocity(transformer, hidden, embedded, latent_BCFHW.shape), made


def _block(
    block: Any, hidden: Tensor, text: Tensor, modulation: Tensor, rotary: Rotary, past: Sequence[Tensor]
) -> tuple[Tensor, KeysValues]:
    shift, scale, gate, shift_ff, scale_ff, gate_ff = (block.scale_shift_table + modulation.float()).chunk(6, dim=1)
    normed = (block.norm1(hidden.float()) * (1 + scale) + shift).type_as(hidden)
    attended, keys_values = _attend(block.attn1, normed, rotary, past)
    hidden = (hidden.float() + attended * gate).type_as(hidden)
    hidden = hidden + block.attn2(block.norm2(hidden.float()).type_as(hidden), text, None, None)
    normed = (block.norm3(hidden.float()) * (1 + scale_ff) + shift_ff).type_as(hidden)
    return (hidden.float() + block.ffn(normed).float() * gate_ff).type_as(hidden), keys_values


def _attend(attention: Any, hidden: Tensor, rotary: Rotary, past: Sequence[Tensor]) -> tuple[Tensor, KeysValues]:
    heads = (attention.heads, -1)
    query = _rotated(attention.norm_q(attention.to_q(hidden)).unflatten(2, heads), rotary)
    key = _rotated(attention.norm_k(attention.to_k(hidden)).unflatten(2, heads), rotary)
    value = attention.to_v(hidden).unflatten(2, heads)
    keys = torch.cat([*(one[0] for one in past), key], dim=1) if past else key
    values = torch.cat([*(one[1] for one in past), value], dim=1) if past else value
    attended = dispatch_attention_fn(query, keys, values, backend=attention.processor._attention_backend)
    return attention.to_out[1](attention.to_out[0](attended.flatten(2, 3).type_as(query))), (key, value)


def _rotary(transformer: Any, latent: Tensor, start: int) -> Rotary:
    """Cosines and sines of these frames' tokens, which come after those of the frames before."""
    batch, channels, frames, height, width = latent.shape
    whole = torch.empty((batch, channels, start + frames, height, width), device="meta")
    cosines, sines = transformer.rope(whole)
    first = cosines.shape[1] // (start + frames) * start
    return cosines[:, first:], sines[:, first:]


def _rotated(heads: Tensor, rotary: Rotary) -> Tensor:
    even, odd = heads.unflatten(-1, (-1, 2)).unbind(-1)
    cosine, sine = rotary[0][..., 0::2], rotary[1][..., 1::2]
    rotated = torch.empty_like(heads)
    rotated[..., 0::2] = even * cosine - odd * sine
    rotated[..., 1::2] = even * sine + odd * cosine
    return rotated


def _velocity(transformer: Any, hidden: Tensor, embedded: Tensor, shape: torch.Size) -> Tensor:
    shift, scale = (transformer.scale_shift_table + embedded.unsqueeze(1)).chunk(2, dim=1)
    hidden = (transformer.norm_out(hidden.float()) * (1 + scale) + shift).type_as(hidden)
    patch = transformer.config.patch_size
    grid = [size // step for size, step in zip(shape[2:], patch, strict=True)]
    patches = transformer.proj_out(hidden).reshape(shape[0], *grid, *patch, -1)
    velocity: Tensor = patches.permute(0, 7, 1, 4, 2, 5, 3, 6).flatten(6, 7).flatten(4, 5).flatten(2, 3)
    return velocity
