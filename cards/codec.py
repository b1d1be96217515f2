"""Tensors as bytes: a blob is a safetensors file with one tensor and its strides.

Strides survive because they decide which kernels run: a contiguous copy of a transposed bf16 latent gives other bits.
"""

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import blake3
import msgspec
from msgspec import Struct, field

from cards import memory
from cards.wire import TensorRef

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

KEY = "tensor"

_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "complex64": "C64",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
_NAMES = {written: name for name, written in _DTYPES.items()}

Parts: TypeAlias = tuple[bytes, memoryview]
"""A blob's header and its data."""


class _Metadata(Struct):
    strides: str


class _About(Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _Header(Struct):
    metadata: _Metadata = field(name="__metadata__")
    tensor: _About = field(name=KEY)


_encode_header = msgspec.json.Encoder().encode
_decode_header = msgspec.json.Decoder(_Header).decode


def encode(tensor: "torch.Tensor") -> tuple[TensorRef, bytes]:
    """The tensor's content reference and the blob it names. Reads host memory: a device tensor is copied here."""
    ref, parts = refer(tensor)
    return ref, b"".join(parts)


def refer(tensor: "torch.Tensor") -> tuple[TensorRef, Parts]:
    """The same with the blob not joined: its data are the tensor's own memory where that is dense and the host's."""
    tensor = tensor.detach().cpu()
    dtype, shape, strides = _layout(tensor)
    header, data = parts(tensor)
    return TensorRef(digest(header, data), dtype, shape, strides, data.nbytes), (header, data)


def parts(tensor: "torch.Tensor") -> Parts:
    """A tensor's blob, without looking at its bytes."""
    tensor = tensor.detach().cpu()
    return header_of(tensor), flat(tensor).numpy().data


def encode_array(array: "NDArray[Any]") -> tuple[TensorRef, bytes]:
    """What `encode` makes of the tensor with this array's elements, without torch. C order."""
    import numpy as np

    dense = np.ascontiguousarray(array)
    strides = tuple(stride // dense.itemsize for stride in dense.strides)
    data = dense.reshape(-1).view(np.uint8).data
    header = _header(dense.dtype.name, dense.shape, strides, data.nbytes)
    ref = TensorRef(digest(header, data), dense.dtype.name, dense.shape, strides, data.nbytes)
    return ref, b"".join((header, data))


def header_of(tensor: "torch.Tensor") -> bytes:
    """What a tensor's blob has before the elements. Copies no element."""
    tensor = tensor.detach()
    if tensor.device.type != "cpu":
        tensor = tensor.to("meta")  # laid out as its copy in host memory
    return _header(*_layout(tensor), tensor.numel() * tensor.element_size())


def flat(tensor: "torch.Tensor") -> "torch.Tensor":
    """A tensor's elements in their order as uint8 (N,), where they are: the same memory, if it is dense."""
    import torch

    dense = tensor.detach().contiguous()
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)


def decode(data: bytes | memoryview, device: str = "cpu") -> "torch.Tensor":
    """The tensor in fresh storage at its home, with the strides it had.

    Raises ValueError on bytes that are no blob of ours, and what torch raises where there is no memory for them.
    """
    begin = 8 + int.from_bytes(data[:8], "little")
    try:
        header = _decode_header(data[8:begin])
        strides = msgspec.json.decode(header.metadata.strides, type=tuple[int, ...])
        return fresh(_NAMES[header.tensor.dtype], header.tensor.shape, strides, memoryview(data)[begin:], device)
    except (msgspec.DecodeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        if memory.ran_out(error):
            raise
        raise ValueError(f"not a tensor blob: {error}") from error


def fresh(
    dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], data: memoryview, device: str
) -> "torch.Tensor":
    """The same of elements in their order. Raises ValueError, and what torch raises, for what can be no tensor."""
    import numpy as np
    import torch

    kind: torch.dtype = getattr(torch, dtype)
    if math.prod(shape) * kind.itemsize != data.nbytes:
        raise ValueError(f"{data.nbytes} bytes are not {shape} of {dtype}")
    if not each_its_own(shape, strides):
        raise ValueError(f"with strides {strides} elements of {shape} share memory")
    dense = torch.empty(shape, dtype=kind)
    flat(dense).numpy()[:] = np.frombuffer(data, np.uint8)
    if dense.stride() == strides and home(kind, device) == "cpu":
        return dense
    return torch.empty_strided(shape, strides, dtype=kind, device=home(kind, device)).copy_(dense)


def home(dtype: "torch.dtype", device: str) -> str:
    """Where a worker of this device keeps a tensor. Bytes (pictures, frames, files, packed caches) no module computes
    with: they are in host memory.
    """
    return "cpu" if str(dtype) == "torch.uint8" else device


def digest(*parts: bytes | memoryview) -> str:
    hasher = blake3.blake3()
    for part in parts:
        hasher.update(part)
    return hasher.hexdigest()


def are(blobs: Sequence[bytes], digests: Sequence[str]) -> bool:
    """Whether these are the blobs of these digests, in order."""
    return len(blobs) == len(digests) and all(map(operator.eq, map(digest, blobs), digests))


def _layout(tensor: "torch.Tensor") -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """Type, shape and strides. Of elements that share memory the blob has as many copies as there are."""
    shape, strides = tuple(tensor.shape), tensor.stride()
    if not each_its_own(shape, strides):
        strides = tensor.new_empty(shape, device="meta").stride()
    return str(tensor.dtype).removeprefix("torch."), shape, tuple(strides)


def _header(dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], nbytes: int) -> bytes:
    """As safetensors would write it, to the last byte."""
    about = _Header(_Metadata(str(list(strides))), _About(_DTYPES[dtype], shape, (0, nbytes)))
    header = _encode_header(about)
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header


def each_its_own(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether every element has a place of its own: an expanded tensor cannot be rebuilt with its strides."""
    extent = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1:
            if stride < extent:
                return False
            extent += stride * (size - 1)
    return True
