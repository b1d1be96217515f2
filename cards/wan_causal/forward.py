"""Wan's transformer over one chunk of frames after others: keys and values of what came before go in and out as values.

The modules are those of diffusers' WanTransformer3DModel and their order is that of its `forward`, which it equals bit
for bit where nothing came before. B batch, C latent channels, F latent frames, H W latent height and width, L tokens,
D width, N heads.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from cards.wan.attention import Rotary, attended, projected, put_out

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
    output, keys_values = _attend(block.attn1, normed, rotary, past)
    hidden = (hidden.float() + output * gate).type_as(hidden)
    hidden = hidden + block.attn2(block.norm2(hidden.float()).type_as(hidden), text, None, None)
    normed = (block.norm3(hidden.float()) * (1 + scale_ff) + shift_ff).type_as(hidden)
    return (hidden.float() + block.ffn(normed).float() * gate_ff).type_as(hidden), keys_values


def _attend(attention: Any, hidden: Tensor, rotary: Rotary, past: Sequence[Tensor]) -> tuple[Tensor, KeysValues]:
    query, key, value = projected(attention, hidden, rotary)
    keys = torch.cat([*(one[0] for one in past), key], dim=1) if past else key
    values = torch.cat([*(one[1] for one in past), value], dim=1) if past else value
    return put_out(attention, attended(attention, query, keys, values)), (key, value)


def _rotary(transformer: Any, latent: Tensor, start: int) -> Rotary:
    """Cosines and sines of these frames' tokens, which come after those of the frames before."""
    batch, channels, frames, height, width = latent.shape
    whole = torch.empty((batch, channels, start + frames, height, width), device="meta")
    cosines, sines = transformer.rope(whole)
    first = cosines.shape[1] // (start + frames) * start
    return cosines[:, first:], sines[:, first:]


def _velocity(transformer: Any, hidden: Tensor, embedded: Tensor, shape: torch.Size) -> Tensor:
    shift, scale = (transformer.scale_shift_table + embedded.unsqueeze(1)).chunk(2, dim=1)
    hidden = (transformer.norm_out(hidden.float()) * (1 + scale) + shift).type_as(hidden)
    patch = transformer.config.patch_size
    grid = [size // step for size, step in zip(shape[2:], patch, strict=True)]
    patches = transformer.proj_out(hidden).reshape(shape[0], *grid, *patch, -1)
    velocity: Tensor = patches.permute(0, 7, 1, 4, 2, 5, 3, 6).flatten(6, 7).flatten(4, 5).flatten(2, 3)
    return velocity
