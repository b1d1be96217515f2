"""One unit, executed: resident tensors in, step body, content-addressed tensors out."""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from cards import codec
from cards.branches import COMPONENT, Branches
from cards.errors import NotFinite
from cards.family import Components, Made, StepBody
from cards.folding import FOLD, MADE, fold_of, lacking
from cards.registry import Families
from cards.wire import INLINE_LIMIT, ArtifactRef, StepError, StepResult, TensorRef, UnitId, WorkPlan, WorkUnit, promised
from workers.clock import perf_counter
from workers.errors import BlobLost, BlobsUnavailable, BranchFailed, BrokenPromise, ExchangeBroken, FoldDiffers
from workers.naming import Named, Naming
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


class Beside(Mapping[str, Any]):
    """A model's modules, and under their names what its bodies are given besides."""

    def __init__(self, components: Components, more: Mapping[str, Any]) -> None:
        self._components = components
        self._more = more

    def __getitem__(self, name: str) -> Any:
        return self._more[name] if name in self._more else self._components[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*self._components, *self._more))

    def __len__(self) -> int:
        return len(self._components) + len(self._more)


def load_models(registry: Families, device: str = "cpu", branches: Branches | None = None) -> dict[str, Loaded]:
    """`branches` evaluates those of their steps; without, each step evaluates its own."""
    loaded = {name: (family.load(device), family.bodies()) for name, family in registry.items()}
    more = {} if branches is None else {COMPONENT: branches}
    return {
        name: Loaded(Beside(modules, more) if more else modules, bodies) for name, (modules, bodies) in loaded.items()
    }


class Executor:
    """Runs one unit at a time. The same units in the same order give the same answers on every rank."""

    def __init__(
        self, models: Mapping[str, Loaded], blobs: BlobStore, *, stores: bool = True, device: str = "cpu"
    ) -> None:
        self.resident = Resident(blobs, device)
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
            return Answer(StepResult(id=answer.result.id, error=step_error(error), seconds=answer.result.seconds))
        return Answer(answer.result, answer.frames)

    def execute(self, unit: WorkUnit, frames: list[bytes]) -> Answer:
        """An error of the step is an answer; only what breaks the process itself is raised."""
        began = perf_counter()
        try:
            self.resident.follow(unit.id.job, unit.id.epoch)
            self.resident.admit(unit.id.job, unit.keep, dict(zip(unit.inline, frames, strict=True)))
            if unit.refolds:
                self._refold(unit)
            reads = {name: self.resident.resolve(unit.id.job, ref) for name, ref in unit.plan.reads.items()}
            tensors = self._tensors(unit.id.job, reads)
            made = self._step(unit.id.job, unit.plan, tensors)
            seconds = perf_counter() - began
            naming = self._naming(reads, tensors, self.resident.unstored(unit.id.job))
            derived = self._derived_by_body(unit.plan, made)
            named = naming.name({name: one for name, one in made.tensors.items() if name not in derived})
            if unit.plan.derives:
                derived = derived or self._derived(unit.id.job, replace(unit.plan, reads=reads), made, tensors, named)
                named |= naming.name(derived, store=unit.plan.snapshot)
            if unit.plan.writes is not None and set(named) != set(unit.plan.writes):
                raise BrokenPromise(", ".join(sorted(set(named) ^ set(unit.plan.writes))))
            return self._answer(unit.id, made, named, naming, seconds)
        except ExchangeBroken:
            raise
        except Exception as error:  # noqa: BLE001 - a step is others' code: whatever it raises fails its job, not the pool
            return Answer(StepResult(id=unit.id, error=step_error(error), seconds=perf_counter() - began))

    def _tensors(self, job: str, reads: Mapping[str, TensorRef]) -> "dict[str, torch.Tensor]":
        return {name: self.resident.get(job, ref) for name, ref in reads.items()}

    def _naming(
        self, reads: Mapping[str, TensorRef], tensors: "Mapping[str, torch.Tensor]", unstored: AbstractSet[str]
    ) -> Naming:
        return Naming(reads, tensors, unstored, self.resident.device)

    def _step(self, job: str, plan: WorkPlan, tensors: "Mapping[str, torch.Tensor]") -> Made:
        import torch

        with torch.inference_mode():
            return self._body(job, plan, tensors)

    def _body(self, job: str, plan: WorkPlan, tensors: "Mapping[str, torch.Tensor]") -> Made:
        model = self._models[plan.instance]
        return model.bodies[plan.kind](model.components, plan, tensors)

    def _derived_by_body(self, plan: WorkPlan, made: Made) -> "dict[str, torch.Tensor]":
        """What the plan derives, where there is no fold for it and the step's body has made it all."""
        if f"{plan.kind}{FOLD}" in self._models[plan.instance].bodies or not made.tensors.keys() >= {*plan.derives}:
            return {}
        return {name: made.tensors[name] for name in plan.derives}

    def _derived(
        self,
        job: str,
        plan: WorkPlan,
        made: Made,
        tensors: "Mapping[str, torch.Tensor]",
        outputs: Mapping[str, Named],
    ) -> "dict[str, torch.Tensor]":
        """What the step's fold makes. It is given what a later refold will be given, to the layout."""
        fold = fold_of(plan, {name: one.ref for name, one in outputs.items()}, made.scalars)
        derived = self._step(job, fold, {**tensors, **{f"{MADE}{name}": one.tensor for name, one in outputs.items()}})
        if set(derived.tensors) != set(plan.derives) or not outputs.keys().isdisjoint(plan.derives):
            raise BrokenPromise(", ".join(sorted({*plan.derives} ^ {*derived.tensors} | {*plan.derives} & {*outputs})))
        return derived.tensors

    def _refold(self, unit: WorkUnit) -> None:
        """Make what nobody stored, as far as it is not here, and then forget what it took."""
        job = unit.id.job
        makes = {ref.digest: ref for refold in unit.refolds for ref in refold.makes.values()}
        kept = {*unit.keep, *(ref.digest for ref in unit.plan.reads.values())}
        wanted = {digest: ref for digest, ref in makes.items() if digest in kept}
        for refold in lacking(wanted, unit.refolds, self.resident.digests(job)).refolds:
            tensors = self._tensors(job, refold.plan.reads)
            made = self._step(job, self._runnable(refold.plan), tensors)
            named = self._naming(refold.plan.reads, tensors, frozenset()).name(made.tensors, store=False)
            for name, ref in refold.makes.items():
                if name not in named or named[name].ref != ref:
                    found = named[name].ref.digest if name in named else "nothing"
                    raise FoldDiffers(refold.plan.step, name, ref.digest, found)
                self.resident.put(job, ref, named[name].tensor)
        self.resident.admit(job, kept, {})
        self.resident.unstored(job).update(makes.keys() & self.resident.digests(job))

    def _runnable(self, fold: WorkPlan) -> WorkPlan:
        """The fold, or the step itself where its body makes all that follows from it."""
        there = fold.kind in self._models[fold.instance].bodies
        return fold if there else replace(fold, kind=fold.kind.removesuffix(FOLD))

    def _answer(self, unit: UnitId, made: Made, named: Mapping[str, Named], naming: Naming, seconds: float) -> Answer:
        for name, one in named.items():
            self.resident.put(unit.job, one.ref, one.tensor, promised(unit, name))
        blobs = naming.blobs
        self.resident.unstored(unit.job).update(naming.left_out - blobs.keys())
        artifacts: list[ArtifactRef] = []
        for artifact in made.artifacts:
            digest = codec.digest(artifact.data)
            blobs[digest] = artifact.data
            artifacts.append(artifact.ref(digest))
        inline = {digest: data for digest, data in blobs.items() if len(data) <= INLINE_LIMIT}
        large = {digest: data for digest, data in blobs.items() if digest not in inline}
        result = StepResult(
            id=unit,
            tensors={name: one.ref for name, one in named.items()},
            artifacts=tuple(artifacts),
            scalars=made.scalars,
            seconds=seconds,
            inline=tuple(inline),
        )
        return Answer(result, tuple(inline.values()), large if self._stores else {})


def step_error(error: Exception) -> StepError:
    import torch

    if isinstance(error, BranchFailed):
        return error.error
    kinds = {
        BlobsUnavailable: "store_trouble",
        BlobLost: "corrupt_checkpoint",
        FoldDiffers: "corrupt_checkpoint",
        NotFinite: "nan",
        MemoryError: "oom",
        torch.OutOfMemoryError: "oom",
    }
    kind = next((kind for cause, kind in kinds.items() if isinstance(error, cause)), "error")
    return StepError(kind, f"{type(error).__name__}: {error}")
