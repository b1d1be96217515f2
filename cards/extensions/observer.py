"""Observers: they look at the steps of a worker and change nothing of what these make."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from cards.family import Made
from cards.wire import WorkPlan

if TYPE_CHECKING:
    import torch

Observed: TypeAlias = Mapping[str, float]
"""What an observer has measured in a step, by name. It goes with the step's result and decides nothing."""

NOTHING: Observed = {}


class Seen(Struct, frozen=True):
    """A body about to be run: of a step, or of its fold."""

    job: str
    plan: WorkPlan
    reads: "Mapping[str, torch.Tensor]"


class Observer:
    """The points at which it is called, on the executor's thread. One that is of no interest need not be overridden.

    Steps of several jobs are between `before_step` and `after_step` at a time, unless it `looks_inside` of components.
    """

    looks_inside = False

    def before_step(self, step: Seen) -> None: ...

    def component(self, step: Seen, name: str, component: Any) -> None:
        """The body takes a component for the first time in this step."""

    def after_step(self, step: Seen, made: Made | None) -> Observed:
        """`made` is None if the body raised. Whatever is raised here is the step's error."""
        return NOTHING
