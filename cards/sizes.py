"""How large what a job makes is, and how much work it is, from configs alone. No torch."""

import math
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from msgspec import Struct

from cards.request import ResolvedRequest

WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "uint8": 1}
"""Bytes of one element."""


class Sized(Struct, frozen=True):
    """A tensor that is not there."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * WIDTH[self.dtype]


class LoopSizes(Struct, frozen=True, kw_only=True):
    """Of one loop. `tensors` by the names that its steps make; `frames` stands for all `frames/...` not named.

    `flops` are those of one step, a multiplication and an addition counting as two; `activations` the bytes that it
    takes beside weights and named tensors.
    """

    tensors: Mapping[str, Sized] = {}
    flops: float = 0.0
    activations: int = 0

    def of(self, name: str) -> Sized:
        """Raises KeyError for a tensor that no size is known of."""
        return self.tensors[name] if name in self.tensors else self.tensors[name.partition("/")[0]]


@runtime_checkable
class Measurable(Protocol):
    """A family that says the sizes of what its loops make, by the names of the loops in its card."""

    def sizes(self, request: ResolvedRequest) -> Mapping[str, LoopSizes]: ...
