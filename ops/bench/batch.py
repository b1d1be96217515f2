"""Steps of several jobs in one forward: what a worker's executor gains by it, beside what the module itself does.

A job is one row: it has no guidance. The checkpoints are random; a step of one job alone takes about 2, 25 and 250 ms.
Times are the process's own on one thread, so that what else the machine does counts little.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import process_time
from typing import Any

import anyio.to_thread

from cards import registry
from cards.family import Family
from cards.forward import Forward
from cards.loop import LoopContext, StepOutput
from cards.model import Model
from cards.request import GenerationRequest, resolve
from cards.wire import Batch, StepResult, TensorRef, UnitId, WorkPlan, WorkUnit
from ops.bench.measure import Figure, figure
from ops.bench.random_wan import save
from ops.blobs import WorkerBlobs
from store.blobs import MemoryBlobs
from workers.execute import Executor
from workers.loaded import load_models

BATCHES = (1, 2, 4, 8)
ROUNDS = 5
SIZES: Mapping[str, dict[str, Any]] = {
    "2 ms": {"layers": 2, "heads": 2, "size": "48x32", "frames": 5, "times": 16},
    "25 ms": {"layers": 4, "heads": 6, "size": "160x96", "frames": 9, "times": 4},
    "250 ms": {"layers": 6, "heads": 16, "size": "240x160", "frames": 13, "times": 1},
}
"""With how many steps of each job are measured at a time."""
STEPS = 1000
"""Of a job, which is not run to its end."""


async def run(data: Path) -> list[Figure]:
    figures: list[Figure] = []
    for name, about in SIZES.items():
        figures += await anyio.to_thread.run_sync(_measure, name, data / name.replace(" ", "-"), about)
    return figures


def _measure(name: str, folder: Path, about: Mapping[str, Any]) -> list[Figure]:
    import torch

    torch.set_num_threads(1)
    save(folder, about["layers"], about["heads"])
    jobs = Jobs(registry.open_model(Model(name="wan", folder=str(folder))), about)
    for size in BATCHES:
        jobs.step(size)  # the first time is measured for exactness
    bare: dict[int, list[float]] = {size: [] for size in BATCHES}
    batched: dict[int, list[float]] = {size: [] for size in BATCHES}
    for _ in range(ROUNDS):
        for size in BATCHES:
            bare[size].append(_seconds(jobs.forward, size, about["times"]))
            batched[size].append(_seconds(jobs.step, size, about["times"]))
    return [line for size in BATCHES for line in _lines(f"{name}, {size} together", size, bare, batched)]


def _lines(
    name: str, size: int, bare: Mapping[int, Sequence[float]], batched: Mapping[int, Sequence[float]]
) -> list[Figure]:
    """Round by round, each beside one alone."""
    module = [one / some for one, some in zip(bare[1], bare[size], strict=True)]
    executor = [one / some for one, some in zip(batched[1], batched[size], strict=True)]
    kept = [ours / theirs for ours, theirs in zip(executor, module, strict=True)]
    lines = [
        figure(f"{name}: a row of the module", [one * 1e3 for one in bare[size]], "ms", 2),
        figure(f"{name}: a step of the executor", [one * 1e3 for one in batched[size]], "ms", 2),
    ]
    if size == 1:
        return lines
    return [
        *lines,
        figure(f"{name}: the module's gain", module, "x", 2),
        figure(f"{name}: the executor's, against one by one", executor, "x", 2),
        figure(f"{name}: of the module's gain", kept, "x", 3),
    ]


def _seconds(call: Callable[[int], None], size: int, times: int) -> float:
    """Of each of so many."""
    began = process_time()
    for _ in range(times):
        call(size)
    return (process_time() - began) / times / size


class Jobs:
    """Jobs on one executor, part way through denoising, and the forward that one of them asks for."""

    def __init__(self, family: Family, about: Mapping[str, Any]) -> None:
        self._models = load_models({family.card.name: family})
        self._blobs = WorkerBlobs(MemoryBlobs())
        self._executor = Executor(self._models, self._blobs)
        self._family = family
        self._jobs = [self._begin(number, about) for number in range(max(BATCHES))]
        self._forward = self._asked()

    def forward(self, rows: int) -> None:
        """The module, called with so many rows."""
        import torch

        batch = {name: torch.cat([tensor] * rows) for name, tensor in self._forward.rows.items()}
        with torch.inference_mode():
            self._forward.call(batch)

    def step(self, size: int) -> None:
        """One of each of so many jobs."""
        some = self._jobs[:size]
        for job, result in zip(some, self._run([job.unit() for job in some]), strict=True):
            job.take(result)

    def _begin(self, number: int, about: Mapping[str, Any]) -> "_Job":
        card = self._family.card
        asked = GenerationRequest(
            model=card.name,
            prompt="a cat",
            seed=number,
            steps=STEPS,
            guidance=1.0,
            size=about["size"],
            frames=about["frames"],
        )
        request = resolve(asked, card, random.Random(0))
        encoding = _Job(f"encode-{number}", self._family, LoopContext(card, request, "encode_text"), {})
        [encoded] = self._run([encoding.unit()])
        return _Job(f"job-{number}", self._family, LoopContext(card, request, "denoise"), encoded.tensors)

    def _run(self, units: Sequence[WorkUnit]) -> list[StepResult]:
        answers = self._executor.run_batch(Batch(tuple(units)), [])
        for answer in answers:
            assert answer.result.error is None, answer.result.error
            self._blobs.put_named(dict(zip(answer.result.inline, answer.frames, strict=True)))
        return [answer.result for answer in answers]

    def _asked(self) -> Forward:
        """By the first step of a job."""
        import torch

        [model], job = self._models.values(), self._jobs[0]
        plan = job.unit().plan
        reads = {name: self._executor.resident.get(job.name, ref) for name, ref in plan.reads.items()}
        with torch.inference_mode():
            step: Any = model.bodies[plan.kind](model.components, plan, reads)
            [forward] = next(step).values()
        assert isinstance(forward, Forward)
        return forward


class _Job:
    """A loop on its way."""

    def __init__(self, name: str, family: Family, context: LoopContext, inputs: dict[str, TensorRef]) -> None:
        self.name = name
        self._loop = family.loops[family.card.loops[context.loop].semantics]
        self._state = self._loop.init(context, inputs)
        self._version = 0

    def unit(self) -> WorkUnit:
        plan = self._loop.next(self._state)
        assert isinstance(plan, WorkPlan)
        self._version += 1
        keep = (*self._state.inputs.values(), *self._state.tensors.values())
        return WorkUnit(UnitId(self.name, 1, self._version, 1), plan, keep=tuple(ref.digest for ref in keep))

    def take(self, result: StepResult) -> None:
        self._state = self._loop.advance(self._state, StepOutput(result.tensors, result.scalars))
