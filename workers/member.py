"""A unit on its way to its answer."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec.structs import replace

from cards.errors import WeightsChanged
from cards.family import Made
from cards.wire import StepError, TensorRef, WorkPlan, WorkUnit
from workers.errors import ExchangeBroken, NotCompiled, step_error

if TYPE_CHECKING:
    import torch


class Member:
    """What it reads, and what its body has made, or made of the same before, or what went wrong.

    `in_pieces` is how its forwards are evaluated where there was no memory for them whole.
    """

    def __init__(self, unit: WorkUnit, *, in_pieces: bool = False) -> None:
        self.unit = unit
        self.in_pieces = in_pieces
        self.reads: dict[str, TensorRef] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        self.made: Made | StepError | None = None
        self.reused = False

    @property
    def job(self) -> str:
        return self.unit.id.job

    @property
    def plan(self) -> WorkPlan:
        """That of the unit, which reads what promises have become."""
        return replace(self.unit.plan, reads=self.reads)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """What is raised is the unit's answer; only what breaks the process itself goes on, or has it run again."""
        try:
            yield
        except (ExchangeBroken, WeightsChanged, NotCompiled):
            raise
        except Exception as error:  # noqa: BLE001 - a step is others' code: whatever it raises fails its job, not the pool
            self.made = step_error(error)
