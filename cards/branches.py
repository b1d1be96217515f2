"""Who evaluates the branches of a step: the process that runs it, in their order, unless its pool's ranks share them.

That is placement and no semantics: a branch is the same forward wherever it runs. A body asks for all of its branches
at once and knows of no ranks.
"""

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from cards.errors import NothingToShare
from cards.family import Components, Family

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger("keyframe.cards")

COMPONENT = "branches"
"""Under this name a worker whose ranks share branches has its `Branches` beside the modules."""

Outputs: TypeAlias = "dict[str, Tensor]"
"""What one branch makes, by name."""


class Branches(Protocol):
    def __call__(self, forwards: "Mapping[str, Callable[[], Outputs]]", /) -> dict[str, Outputs]:
        """The outputs of all branches, in their order. Each is evaluated once, somewhere."""
        ...


@runtime_checkable
class Branching(Protocol):
    """A family whose steps evaluate branches."""

    def unshared(self) -> str:
        """Why ranks cannot share them after all; empty if they can."""
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


def check(families: Mapping[str, Family]) -> None:
    """Of a pool whose ranks are to share. Raises NothingToShare if no model of it has what they could."""
    reasons = {name: _reason(family) for name, family in families.items() if not family.card.stages}
    unshared = {name: reason for name, reason in reasons.items() if reason}
    if len(unshared) == len(reasons):
        raise NothingToShare(unshared)
    for name, reason in unshared.items():
        log.warning("parallel: every rank runs all of %s: %s", name, reason)


def _reason(family: Family) -> str:
    return family.unshared() if isinstance(family, Branching) else "its steps have one branch"


def _named(forward: "Callable[[], Tensor]") -> "Callable[[], Outputs]":
    return lambda: {"output": forward()}
