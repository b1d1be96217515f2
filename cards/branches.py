"""Who evaluates the forwards that a step asks for: the process that runs it, in their order, or the ranks of its pool.

That is placement and no semantics: a branch is the same forward wherever it runs. A body asks for all of its branches
at once and knows of no ranks.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from cards.errors import NothingToShare
from cards.family import Asking, Components, Family, Made
from cards.forward import Forward, Outputs

log = logging.getLogger("keyframe.cards")

COMPONENT = "branches"
"""Under this name a worker whose ranks share branches has its `Branches` beside the modules."""


class Branches(Protocol):
    def __call__(self, forwards: Mapping[str, Callable[[], Outputs]], /) -> dict[str, Outputs]:
        """The outputs of all branches, in their order. Each is evaluated once, somewhere."""
        ...


@runtime_checkable
class Branching(Protocol):
    """A family whose steps evaluate branches."""

    def unshared(self) -> str:
        """Why ranks cannot share them after all; empty if they can."""
        ...


def in_order(forwards: Mapping[str, Callable[[], Outputs]]) -> dict[str, Outputs]:
    return {branch: forward() for branch, forward in forwards.items()}


def evaluate(components: Components, forwards: Mapping[str, Callable[[], Outputs]]) -> dict[str, Outputs]:
    branches: Branches = components.get(COMPONENT, in_order)
    return branches(forwards)


def driven(step: Made | Asking, answer: Callable[[Mapping[str, Forward]], dict[str, Outputs]]) -> Made:
    """What a body makes whose questions are answered so. An error of the answer is one in the body."""
    if isinstance(step, Made):
        return step
    try:
        asked = next(step)
        while True:
            try:
                outputs = answer(asked)
            except Exception as error:  # noqa: BLE001 - the body may have something to close
                asked = step.throw(error)
            else:
                asked = step.send(outputs)
    except StopIteration as end:
        made: Made = end.value
        return made


def alone(components: Components, step: Made | Asking) -> Made:
    """What a body makes beside which no other is run."""
    return driven(step, lambda forwards: evaluate(components, forwards))


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
