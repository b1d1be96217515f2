"""Executors with a step of the test's own, and units for them."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from cards import codec
from cards.family import Components, Made, StepBody
from cards.wire import TensorRef, UnitId, WorkPlan, WorkUnit
from ops.blobs import WorkerBlobs
from store.blobs import MemoryBlobs
from workers.execute import Executor
from workers.loaded import Loaded

Body = Callable[[Mapping[str, torch.Tensor]], Made]


class CountingBlobs(WorkerBlobs):
    """Says what was written and what was asked for."""

    def __init__(self) -> None:
        super().__init__(MemoryBlobs())
        self.calls = 0
        self.puts: list[str] = []
        self.gets: list[str] = []

    def put_named(self, blobs: Mapping[str, bytes]) -> None:
        self.calls += 1
        self.puts += blobs
        super().put_named(blobs)

    def get(self, digest: str) -> bytes:
        self.gets.append(digest)
        return super().get(digest)


def executor(body: Body, blobs: CountingBlobs | None = None, *, fold: Body | None = None, **options: Any) -> Executor:
    bodies = {"step": _of(body)} | ({"step.fold": _of(fold)} if fold is not None else {})
    return Executor({"toy": Loaded({}, bodies)}, blobs or CountingBlobs(), **options)


def _of(body: Body) -> StepBody:
    def step(components: Components, plan: WorkPlan, reads: Mapping[str, torch.Tensor]) -> Made:
        return body(reads)

    return step


def unit(reads: dict[str, TensorRef] | None = None, *, job: str = "j", **fields: Any) -> WorkUnit:
    plan = WorkPlan(instance="toy", loop="step", kind="step", step=0, reads=reads or {})
    return WorkUnit(UnitId(job, 1, 1, 1), plan, **fields)


def sent(**tensors: torch.Tensor) -> tuple[dict[str, TensorRef], list[bytes]]:
    """What a unit names and the frames that follow it."""
    encoded = {name: codec.encode(tensor) for name, tensor in tensors.items()}
    return {name: ref for name, (ref, _) in encoded.items()}, [data for _, data in encoded.values()]


def digests(refs: Mapping[str, TensorRef]) -> tuple[str, ...]:
    return tuple(ref.digest for ref in refs.values())
