"""A model's forward for one branch of a step, whole or in parts, and how a step's body calls it.

A body that can be intercepted takes a `Through` and calls it once a branch. Nothing else of it knows of interceptors.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor


class Forward(Protocol):
    """Inputs are bound. B batch, L tokens, D width.

    `modulated` is what is made of the timestep to modulate the blocks. The four parts in turn are `whole`, to the bit:
    `enter` (B, L, D), `head` the first block, `tail` the others, `leave` to the model's output.
    """

    def whole(self) -> "Tensor": ...
    def modulated(self) -> "Tensor": ...
    def enter(self) -> "Tensor": ...
    def head(self, hidden_BLD: "Tensor") -> "Tensor": ...
    def tail(self, hidden_BLD: "Tensor") -> "Tensor": ...
    def leave(self, hidden_BLD: "Tensor") -> "Tensor": ...


Through: TypeAlias = "Callable[[str, Forward], Tensor]"
"""The output of the branch of that name."""


def whole(branch: str, forward: Forward) -> "Tensor":
    """What a body calls where nothing intercepts it."""
    return forward.whole()
