"""A module that counts its calls, steps that ask it for forwards, and units of them that are executed together."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cards.family import Asking, Components, Made
from cards.forward import Forward, single
from cards.wire import Batch, StepResult, UnitId, WorkPlan, WorkUnit
from tests.workers.units import CountingBlobs, digests, sent
from workers.execute import Executor
from workers.loaded import Loaded

WIDTH = 32
BAD, HUGE = 13.0, 17.0
"""A row that begins so makes the module raise, or run out of memory."""


class Module(nn.Module):
    """It says how many rows it was called with, and takes `most` at a time."""

    def __init__(self, most: int = 100) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.calls: list[int] = []
        self.most = most

    def forward(self, x_BLD: Tensor) -> Tensor:
        self.calls.append(len(x_BLD))
        first = x_BLD[:, 0, 0]
        if (first == BAD).any():
            raise ValueError("a bad row")
        if (first == HUGE).any() or len(x_BLD) > self.most:
            raise MemoryError("it does not fit")
        made: Tensor = self.linear(x_BLD)
        return made


def module() -> Module:
    torch.manual_seed(0)
    return Module().requires_grad_(False)


def asking(components: Components, plan: WorkPlan, reads: Mapping[str, Tensor]) -> Asking:
    """The branches of a step: two, if it is guided."""
    branches = ("text", "negative") if plan.scalars.get("guided") else ("text",)
    made = single((yield {branch: Forward(components["model"], {"x_BLD": reads["x"]}) for branch in branches}))
    return Made({"y": sum(made.values(), torch.zeros(()))})


def executor(model: nn.Module, body: Any = asking, **more: Any) -> Executor:
    return Executor({"toy": Loaded({"model": model}, {"step": body, **more})}, CountingBlobs())


def tokens(seed: int, first: float = 0.5, length: int = 16) -> Tensor:
    x_BLD = torch.randn(1, length, WIDTH, generator=torch.Generator().manual_seed(seed))
    x_BLD[0, 0, 0] = first
    return x_BLD


def unit(job: str, x: Tensor, version: int = 1, **fields: Any) -> tuple[WorkUnit, list[bytes]]:
    refs, frames = sent(x=x)
    plan = WorkPlan(instance="toy", loop="step", kind="step", step=0, reads=refs, together=True, **fields)
    return WorkUnit(UnitId(job, 1, version, 1, version), plan, digests(refs), digests(refs)), frames


def units(*inputs: Tensor, **fields: Any) -> list[tuple[WorkUnit, list[bytes]]]:
    return [unit(f"job-{number}", x, **fields) for number, x in enumerate(inputs)]


def together(runs: Executor, members: Sequence[tuple[WorkUnit, list[bytes]]]) -> list[StepResult]:
    batch = Batch(tuple(unit for unit, _ in members))
    return [answer.result for answer in runs.run_batch(batch, [frame for _, frames in members for frame in frames])]


def alone(model: nn.Module, members: Sequence[tuple[WorkUnit, list[bytes]]], body: Any = asking) -> list[StepResult]:
    return [executor(model, body).run(unit, frames).result for unit, frames in members]


def made(results: Sequence[StepResult]) -> list[tuple[UnitId, Any, str | None]]:
    return [(one.id, one.tensors, one.error and one.error.kind) for one in results]


def known(model: Module, body: Any = asking) -> Executor:
    """An executor that has met such forwards before, whatever their number."""
    runs = executor(model, body)
    for size in range(2, 9):
        together(runs, units(*(tokens(seed + 100) for seed in range(size))))
    model.calls.clear()
    return runs
