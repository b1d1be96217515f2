"""Who evaluates the branches of a step: the process that runs it, in their order, unless its pool's ranks share them.

That is placement and no semantics: a branch is the same forward wherever it runs. A body asks for all of its branches
at once and knows of no ranks.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias

from cards.family import Components

if TYPE_CHECKING:
    from torch import Tensor

COMPONENT = "branches"
"""Under this name a worker whose ranks share branches has its `Branches` beside the modules."""

Outputs: TypeAlias = "dict[str, Tensor]"
"""What one branch makes, by name."""


class Branches(Protocol):
    def __call__(self, forwards: "Mapping[str, Callable[[], Outputs]]", /) -> dict[str, Outputs]:
        """The outputs of all branches, in their order. Each is evaluated once, somewhere."""
        ...


def in_order(forwards: "Mapping[str, Callable[[], Outputs]]") -> dict[str, Outputs]:
    return {branch: forward() for branch, forward in forwards.items()}


def evaluate(components: Components, forwards: "Mapping[str, Callable[[], Outputs]]") -> dict[str, Outputs]:
    branches: Branches = components.get(COMPONENT, in_order)
    return branches(forwards)


def evaluate_one(components: Components, forwards: "Mapping[str, Callable[[], Tensor]]") -> "dict[str, Tensor]":
    """The same, where each branch makes one tensor."""
    made = evaluate(components, {branch: _named(forward) for branch, forward in forwards.items()})
    return {branch: outputs["output"] for branch, outputs in made.items()}


def _named(forward: "Callable[[], Tensor]") -> "Callable[[], Outputs]":
    return lambda: {"output": forward()}
