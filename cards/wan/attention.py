"""Self-attention of Wan's blocks in its parts: what diffusers' WanAttnProcessor does, to the bit. B batch, L tokens,
D width, N heads.
"""

from typing import Any, TypeAlias

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from torch import Tensor

Rotary: TypeAlias = tuple[Tensor, Tensor]
"""Cosines and sines, (1, L, 1, D / N)."""


def projected(attention: Any, hidden: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value, each (B, L, N, D / N); the first two rotated to where their tokens are."""
    heads = (attention.heads, -1)
    query = _rotated(attention.norm_q(attention.to_q(hidden)).unflatten(2, heads), rotary)
    key = _rotated(attention.norm_k(attention.to_k(hidden)).unflatten(2, heads), rotary)
    return query, key, attention.to_v(hidden).unflatten(2, heads)


def attended(attention: Any, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """(B, L, N, D / N)."""
    made: Tensor = dispatch_attention_fn(query, keys, values, backend=attention.processor._attention_backend)
    return made.type_as(query)


def put_out(attention: Any, heads: Tensor) -> Tensor:
    """(B, L, D)."""
    made: Tensor = attention.to_out[1](attention.to_out[0](heads.flatten(2, 3)))
    return made


def _rotated(heads: Tensor, rotary: Rotary) -> Tensor:
    even, odd = heads.unflatten(-1, (-1, 2)).unbind(-1)
    cosine, sine = rotary[0][..., 0::2], rotary[1][..., 1::2]
    rotated = torch.empty_like(heads)
    rotated[..., 0::2] = even * cosine - odd * sine
    rotated[..., 1::2] = even * sine + odd * cosine
    return rotated
