"""A list of tensors, some of them absent or marked by a word, as one tensor of bytes: a cache that changes shape."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from cards import codec

if TYPE_CHECKING:
    import torch

Entry: TypeAlias = "torch.Tensor | str | None"


def pack(entries: Sequence[Entry]) -> "torch.Tensor":
    """uint8 (N,), with dtypes, shapes and strides in it."""
    import torch

    encoded = [one if one is None or isinstance(one, str) else codec.encode(one)[1] for one in entries]
    return torch.frombuffer(bytearray(msgspec.msgpack.encode(encoded)), dtype=torch.uint8)


def unpack(packed: "torch.Tensor", device: str = "cpu") -> list[Entry]:
    encoded: list[bytes | str | None] = msgspec.msgpack.decode(packed.numpy().data)
    return [codec.decode(one, device) if isinstance(one, bytes) else one for one in encoded]
