"""A forward whose tokens are dealt out to ranks, as DeepSpeed-Ulysses does it (Jacobs et al. 2023).

Between attentions a rank has some of the tokens and all heads, in attention all tokens and some of the heads. It is the
forward of one rank, to the bit, as long as no kernel can tell: on a CPU they go by blocks of rows, and treat very few
rows otherwise. So the parts are whole blocks. What cannot be dealt out so, every rank runs in full.

B batch, L all tokens, l those of this rank, N all heads, n those of this rank, d width of a head, D = N d.
"""

from contextlib import AbstractContextManager
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from msgspec import Struct

from cards.family import Components
from cards.parallel import Sharing

if TYPE_CHECKING:
    import torch
    from torch import Tensor

BLOCK = 32
"""Tokens. Every block of queries that torch's attention takes on a CPU is a multiple of it, and so is every vector."""

LEAST = 4
"""Rows from which on a product of matrices gives each row the bits that it has among many. Of three it does not."""


class Stretch(Struct, frozen=True):
    """What is dealt out: hidden states (B, L, N d), through so many layers that attend to them once."""

    batch: int
    tokens: int
    heads: int
    width: int
    """Of a head."""
    layers: int
    dtype: "torch.dtype"
    device: "torch.device"


class Turns(Protocol):
    """The exchanges of one forward. All ranks make all of them, in one order."""

    def mine(self, whole: "Tensor") -> "Tensor":
        """This rank's tokens of (B, L, ...). No exchange."""
        ...

    def to_heads(self, query: "Tensor", key: "Tensor", value: "Tensor") -> "tuple[Tensor, ...]":
        """Each (B, l, N, d) to (B, L, n, d)."""
        ...

    def to_tokens(self, attended: "Tensor") -> "Tensor":
        """(B, L, n, d) to (B, l, N, d)."""
        ...

    def whole(self, hidden: "Tensor") -> "Tensor":
        """(B, l, D) to (B, L, D)."""
        ...


class Ranks(Protocol):
    """Those that share forwards, seen from one of them."""

    @property
    def degree(self) -> int: ...

    def take_turns(self, stretch: Stretch) -> AbstractContextManager[Turns]:
        """For one forward, which fails on all ranks alike if it fails on one."""
        ...


@runtime_checkable
class Dealing(Sharing, Protocol):
    """A family that can deal out the tokens of its forwards."""

    def load_dealt(self, device: str, ranks: Ranks) -> Components: ...


def parts(tokens: int, degree: int) -> tuple[int, ...]:
    """How many tokens each rank gets, in order: blocks, as evenly as they go. Empty for what is not to be dealt out."""
    blocks = -(-tokens // BLOCK)
    if blocks < degree or 0 < tokens % BLOCK < LEAST:
        return ()
    begins = [min(tokens, BLOCK * (blocks * place // degree)) for place in range(degree + 1)]
    return tuple(end - begin for begin, end in pairwise(begins))
