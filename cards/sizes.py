"""How large what a job makes is, and how much work it is, from configs and headers alone. No torch."""

import math
from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from cards.errors import Unmeasured
from cards.family import Family
from cards.request import ResolvedRequest
from cards.wire import WorkPlan

WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "uint8": 1}
"""Bytes of one element."""


class Sized(Struct, frozen=True):
    """A tensor that is not there."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * WIDTH[self.dtype]


class Work(Struct, frozen=True):
    """What one step takes: products, convolutions and attention, a multiplication and an addition counting as two; and
    the bytes beside weights and named tensors, at most at any time.
    """

    flops: int = 0
    activations: int = 0

    def __add__(self, other: "Work") -> "Work":
        """One after the other."""
        return Work(self.flops + other.flops, max(self.activations, other.activations))

    def in_a_batch_of(self, count: int) -> "Work":
        return Work(count * self.flops, count * self.activations)

    def times(self, count: int) -> "Work":
        return Work(count * self.flops, self.activations)


OfStep: TypeAlias = Callable[[WorkPlan], Work]


NOTHING = Work()


def always(work: Work = NOTHING) -> OfStep:
    """All steps of a loop are alike."""
    return lambda plan: work


class LoopSizes(Struct, frozen=True, kw_only=True):
    """Of one loop. `tensors` by the names that its steps make; `frames` stands for all `frames/...` not named."""

    tensors: Mapping[str, Sized] = {}
    work: OfStep = always()

    def of(self, name: str) -> Sized:
        """Raises KeyError for a tensor that no size is known of."""
        return self.tensors[name] if name in self.tensors else self.tensors[name.partition("/")[0]]


@runtime_checkable
class Measurable(Protocol):
    """A family that says the sizes of what its loops make, by the names of the loops in its card."""

    def sizes(self, request: ResolvedRequest) -> Mapping[str, LoopSizes]:
        """Raises BadCheckpoint for weights that it does not know what to do with."""
        ...


def sizes_of(family: Family, request: ResolvedRequest) -> Mapping[str, LoopSizes]:
    """Raises Unmeasured, BadCheckpoint."""
    if not isinstance(family, Measurable):
        raise Unmeasured(family.card.name, f"its family, {family.card.family!r}, does not say them (cards/sizes.py)")
    try:
        return family.sizes(request)
    except KeyError as error:
        raise Unmeasured(
            family.card.name, f"a config of its checkpoint has no {error}, which save_pretrained writes"
        ) from error
    except (TypeError, ValueError, IndexError, ArithmeticError, AttributeError, MemoryError) as error:
        problem = f"a value in a config of its checkpoint is of no use: {type(error).__name__}: {error}"
        raise Unmeasured(family.card.name, problem) from error
