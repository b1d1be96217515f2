"""One unit, executed: resident tensors in, step body, content-addressed tensors out."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from cards import codec
from cards.family import Components, Made, StepBody
from cards.registry import Registry
from cards.wire import INLINE_LIMIT, ArtifactRef, StepError, StepResult, TensorRef, UnitId, WorkPlan, WorkUnit, promised
from workers.clock import perf_counter
from workers.errors import BlobLost, BlobsUnavailable, BrokenPromise
from workers.resident import BlobStore, Resident

if TYPE_CHECKING:
    import torch


class Loaded(Struct, frozen=True):
    """A model on this device: its modules and what may be done with them."""

    components: Components
    bodies: Mapping[str, StepBody]


class Answer(Struct, frozen=True):
    """A result, the frames that follow it, and the blobs that must be stored before anyone may hear of it."""

    result: StepResult
    frames: tuple[bytes, ...] = ()
    blobs: Mapping[str, bytes] = {}


def load_models(registry: Registry) -> dict[str, Loaded]:
    return {name: Loaded(family.load("cpu"), family.bodies()) for name, family in registry.items()}


class Executor:
    """Runs one unit at a time. The same units in the same order give the same answers on every rank."""

    def __init__(self, models: Mapping[str, Loaded], blobs: BlobStore, *, stores: bool = True) -> None:
        self.resident = Resident(blobs)
        self._models = models
        self._blobs = blobs
        self._stores = stores

    def run(self, unit: WorkUnit, frames: list[bytes]) -> Answer:
        return self.keep(self.execute(unit, frames))

    def keep(self, answer: Answer) -> Answer:
        """Store what must be stored. May be called on another thread, while the next unit is executed."""
        try:
            if answer.blobs:
                self._blobs.put_named(answer.blobs)
        except Exception as error:  # noqa: BLE001 - as below: it is the step's answer
            return Answer(StepResult(id=answer.result.id, error=_step_error(error), seconds=answer.result.seconds))
        return Answer(answer.result, answer.frames)

    def execute(self, unit: WorkUnit, frames: list[bytes]) -> Answer:
        """An error of the step is an answer; only what breaks the process itself is raised."""
        began = perf_counter()
        try:
            self.resident.follow(unit.id.job, unit.id.epoch)
            self.resident.admit(unit.id.job, unit.keep, dict(zip(unit.inline, frames, strict=True)))
            reads = {name: self.resident.resolve(unit.id.job, ref) for name, ref in unit.plan.reads.items()}
            tensors = {name: self.resident.get(unit.id.job, ref) for name, ref in reads.items()}
            made = self._step(unit.plan, tensors)
            named = {id(tensors[name]): ref for name, ref in reads.items()}
            return self._answer(unit.id, unit.plan.writes, made, named, perf_counter() - began)
        except Exception as error:  # noqa: BLE001 - a step is others' code: whatever it raises fails its job, not the pool
            return Answer(StepResult(id=unit.id, error=_step_error(error), seconds=perf_counter() - began))

    def _step(self, plan: WorkPlan, tensors: "dict[str, torch.Tensor]") -> Made:
        import torch

        model = self._models[plan.instance]
        with torch.inference_mode():
            return model.bodies[plan.kind](model.components, plan, tensors)

    def _answer(
        self,
        unit: UnitId,
        writes: tuple[str, ...] | None,
        made: Made,
        named: dict[int, TensorRef],
        seconds: float,
    ) -> Answer:
        """`named` are the tensors that the step read, by object: one that is handed through has a name already."""
        blobs: dict[str, bytes] = {}
        tensors: dict[str, TensorRef] = {}
        if writes is not None and set(made.tensors) != set(writes):
            raise BrokenPromise(", ".join(sorted(set(made.tensors) ^ set(writes))))
        for name, tensor in made.tensors.items():
            ref, kept = (named[id(tensor)], tensor) if id(tensor) in named else _named(tensor, blobs)
            self.resident.put(unit.job, ref, kept, promised(unit, name))
            tensors[name] = ref
        artifacts: list[ArtifactRef] = []
        for artifact in made.artifacts:
            digest = codec.digest(artifact.data)
            blobs[digest] = artifact.data
            artifacts.append(artifact.ref(digest))
        inline = {digest: data for digest, data in blobs.items() if len(data) <= INLINE_LIMIT}
        large = {digest: data for digest, data in blobs.items() if digest not in inline}
        result = StepResult(
            id=unit,
            tensors=tensors,
            artifacts=tuple(artifacts),
            scalars=made.scalars,
            seconds=seconds,
            inline=tuple(inline),
        )
        return Answer(result, tuple(inline.values()), large if self._stores else {})


def _named(tensor: "torch.Tensor", blobs: dict[str, bytes]) -> "tuple[TensorRef, torch.Tensor]":
    """Its name, and the tensor to go on with: the one that a resume would load, if that is not laid out alike."""
    ref, data = codec.encode(tensor)
    blobs[ref.digest] = data
    alike = not tensor.storage_offset() and tensor.stride() == ref.strides
    return ref, tensor if alike else codec.decode(data)


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
