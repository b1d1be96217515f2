"""A unit of those that are executed together, on its way to its answer."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cards.errors import WeightsChanged
from cards.family import Made
from cards.wire import StepError, TensorRef, WorkUnit
from workers.errors import ExchangeBroken, NotCompiled, step_error

if TYPE_CHECKING:
    import torch


class Member:
    """What it reads, and what its body has made or what went wrong."""

    def __init__(self, unit: WorkUnit) -> None:
        self.unit = unit
        self.reads: dict[str, TensorRef] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        self.made: Made | StepError | None = None

    @contextmanager
    def failing(self) -> Iterator[None]:
        """What is raised is the unit's answer; only what breaks the process itself goes on, or has it run again."""
        try:
            yield
        except (ExchangeBroken, WeightsChanged, NotCompiled):
            raise
        except Exception as error:  # noqa: BLE001 - a step is others' code: whatever it raises fails its job, not the pool
            self.made = step_error(error)
