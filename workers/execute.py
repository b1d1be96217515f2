"""One unit, executed: resident tensors in, step body, content-addressed tensors out."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from cards import codec
from cards.family import Components, Made, StepBody
from cards.registry import Registry
from cards.wire import INLINE_LIMIT, ArtifactRef, StepError, StepResult, TensorRef, WorkPlan, WorkUnit
from workers.clock import perf_counter
from workers.errors import BlobLost, BlobsUnavailable
from workers.resident import BlobStore, Resident

if TYPE_CHECKING:
    import torch


class Loaded(Struct, frozen=True):
    """A model on this device: its modules and what may be done with them."""

    components: Components
    bodies: Mapping[str, StepBody]


class Answer(Struct, frozen=True):
    """A result and the frames that follow it."""

    result: StepResult
    frames: tuple[bytes, ...] = ()


def load_models(registry: Registry, device: str) -> dict[str, Loaded]:
    return {name: Loaded(family.load(device), family.bodies()) for name, family in registry.items()}


class Executor:
    """Runs one unit at a time. The same units in the same order give the same answers on every rank."""

    def __init__(self, models: Mapping[str, Loaded], blobs: BlobStore, *, stores: bool = True) -> None:
        self.resident = Resident(blobs)
        self._models = models
        self._blobs = blobs
        self._stores = stores

    def run(self, unit: WorkUnit, frames: list[bytes]) -> Answer:
        """An error of the step is an answer; only what breaks the process itself is raised."""
        began = perf_counter()
        try:
            self.resident.admit(unit.id.job, unit.keep, dict(zip(unit.inline, frames, strict=True)))
            made, reads = self._step(unit.id.job, unit.plan)
            return self._answer(unit, made, reads, perf_counter() - began)
        except Exception as error:  # noqa: BLE001 - a step is others' code: whatever it raises fails its job, not the pool
            return Answer(StepResult(id=unit.id, error=_step_error(error), seconds=perf_counter() - began))

    def _step(self, job: str, plan: WorkPlan) -> "tuple[Made, dict[str, torch.Tensor]]":
        import torch

        model = self._models[plan.instance]
        reads = {name: self.resident.get(job, ref) for name, ref in plan.reads.items()}
        with torch.inference_mode():
            return model.bodies[plan.kind](model.components, plan, reads), reads

    def _answer(self, unit: WorkUnit, made: Made, reads: "dict[str, torch.Tensor]", seconds: float) -> Answer:
        inline: dict[str, bytes] = {}
        tensors = {name: self._keep(unit, tensor, reads, inline) for name, tensor in made.tensors.items()}
        artifacts: list[ArtifactRef] = []
        for artifact in made.artifacts:
            digest = codec.digest(artifact.data)
            self._put(digest, artifact.data, inline)
            artifacts.append(artifact.ref(digest))
        result = StepResult(
            id=unit.id,
            tensors=tensors,
            artifacts=tuple(artifacts),
            scalars=made.scalars,
            seconds=seconds,
            inline=tuple(inline),
        )
        return Answer(result, tuple(inline.values()))

    def _keep(
        self, unit: WorkUnit, tensor: "torch.Tensor", reads: "dict[str, torch.Tensor]", inline: dict[str, bytes]
    ) -> TensorRef:
        for name, read in reads.items():
            if tensor is read:  # handed through unchanged: it has a name already
                return unit.plan.reads[name]
        ref, data = codec.encode(tensor)
        self._put(ref.digest, data, inline)
        if tensor.storage_offset() or tensor.stride() != ref.strides:
            tensor = codec.decode(data)  # the state that goes on is the one that a resume would load
        self.resident.put(unit.id.job, ref.digest, tensor)
        return ref

    def _put(self, digest: str, data: bytes, inline: dict[str, bytes]) -> None:
        if len(data) <= INLINE_LIMIT:
            inline[digest] = data
        elif self._stores:
            self._blobs.put(data)


def _step_error(error: Exception) -> StepError:
    import torch

    kinds = {
        BlobsUnavailable: "store_trouble",
        BlobLost: "corrupt_checkpoint",
        MemoryError: "oom",
        torch.OutOfMemoryError: "oom",
    }
    kind = next((kind for cause, kind in kinds.items() if isinstance(error, cause)), "error")
    return StepError(kind, f"{type(error).__name__}: {error}")
