"""Who evaluates the forwards that a step asks for: the process that runs it, in their order, or the ranks of its pool.

That is placement and no semantics: a branch is the same forward wherever it runs. A body asks for all of its branches
at once and knows of no ranks.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from cards.family import Asking, Components, Made
from cards.forward import Forward, Outputs

COMPONENT = "branches"
"""Under this name a worker whose ranks share branches has its `Branches` beside the modules."""


class Branches(Protocol):
    def __call__(self, forwards: Mapping[str, Callable[[], Outputs]], /) -> dict[str, Outputs]:
        """The outputs of all branches, in their order. Each is evaluated once, somewhere."""
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
