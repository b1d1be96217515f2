"""A list of tensors, some of them absent or marked by a word, as one tensor of bytes: a cache that changes shape.

They are the MessagePack list of the tensors' blobs, which is written and read in its place: no blob is made beside it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from cards import codec

if TYPE_CHECKING:
    import torch

Entry: TypeAlias = "torch.Tensor | str | None"

_BYTES = {1: 0xC4, 2: 0xC5, 4: 0xC6}
"""MessagePack's marks of bytes, by the width of their length, which follows."""


def pack(entries: Sequence[Entry]) -> "torch.Tensor":
    """uint8 (N,), with dtypes, shapes and strides in it."""
    import torch

    pieces = [_piece(_begin_list(len(entries)))]
    for one in entries:
        if one is None or isinstance(one, str):
            pieces.append(_piece(msgspec.msgpack.encode(one)))
        else:
            header = codec.header_of(one)
            pieces += [_piece(_begin_bytes(len(header) + one.nbytes) + header), one]
    sizes = [piece.nbytes for piece in pieces]
    packed = torch.empty(sum(sizes), dtype=torch.uint8)
    for place, piece in zip(packed.split(sizes), pieces, strict=True):
        place.copy_(codec.flat(piece))
    return packed


def unpack(packed: "torch.Tensor", device: str = "cpu") -> list[Entry]:
    return [_entry(raw, device) for raw in msgspec.msgpack.decode(packed.numpy().data, type=list[msgspec.Raw])]


def _entry(raw: msgspec.Raw, device: str) -> Entry:
    if memoryview(raw)[0] in _BYTES.values():
        return codec.decode(msgspec.msgpack.decode(raw, type=memoryview), device)
    return msgspec.msgpack.decode(raw, type=str | None)


def _piece(data: bytes) -> "torch.Tensor":
    import torch

    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _begin_list(count: int) -> bytes:
    return msgspec.msgpack.encode([None] * count)[: -count or None]


def _begin_bytes(count: int) -> bytes:
    width = 1 if count < 1 << 8 else 2 if count < 1 << 16 else 4
    return bytes([_BYTES[width]]) + count.to_bytes(width, "big")
