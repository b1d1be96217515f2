"""Guidance as policies over one denoise body: which conditionings a step evaluates, and how their outputs combine.

A policy has no state of its own. What it needs and what it must remember are scalars of the loop's state, so that two
jobs in one model cannot disturb each other and a resumed job goes on as it was.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from cards import sampling
from cards.wire import Scalar

if TYPE_CHECKING:
    import torch


class GuidancePolicy(Protocol):
    together: bool
    """Whether the branches are rows of one forward."""

    def branches(self, scalars: Mapping[str, Scalar]) -> tuple[str, ...]:
        """The conditionings to evaluate in this step, in the order of evaluation."""
        ...

    def combine(
        self, outputs: "Mapping[str, torch.Tensor]", scalars: Mapping[str, Scalar]
    ) -> "tuple[torch.Tensor, dict[str, Scalar]]":
        """One model output out of those of the branches, and the scalars to remember for the next step."""
        ...


class ClassifierFree:
    """Ho and Salimans 2022. The branches are evaluated one by one: two forwards of one, not one forward of two.

    With `together` they are: to the same bits where the modules are batch invariant (cards/invariant.py).
    With guidance 1 the formula is the conditional output, and the other branch is not evaluated.
    """

    def __init__(self, conditional: str, unconditional: str, *, together: bool = False) -> None:
        self.together = together
        self._conditional = conditional
        self._unconditional = unconditional

    def branches(self, scalars: Mapping[str, Scalar]) -> tuple[str, ...]:
        guided = scalars["guidance"] != 1.0
        return (self._conditional, self._unconditional) if guided else (self._conditional,)

    def combine(
        self, outputs: "Mapping[str, torch.Tensor]", scalars: Mapping[str, Scalar]
    ) -> "tuple[torch.Tensor, dict[str, Scalar]]":
        conditional = outputs[self._conditional]
        if self._unconditional not in outputs:
            return conditional, {}
        return sampling.guide(conditional, outputs[self._unconditional], float(scalars["guidance"])), {}
