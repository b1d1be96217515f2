"""Units, executed: resident tensors in, step bodies, content-addressed tensors out."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from cards import codec, finite, lora
from cards.branches import COMPONENT, driven, evaluate
from cards.cache_key import CacheKey
from cards.family import Asking, Components, Made
from cards.forward import Forward, Outputs
from cards.wire import (
    INLINE_LIMIT,
    ArtifactRef,
    Batch,
    StepError,
    StepResult,
    UnitId,
    WorkPlan,
    WorkUnit,
    members,
    promised,
)
from workers import side_by_side
from workers.adapters import Adapters
from workers.batches import Arrived, turns
from workers.caches import FEATURE, STEP, WEIGHTS, Caches
from workers.clock import perf_counter
from workers.compiled import Tier
from workers.errors import OOM, BrokenPromise, NotCompiled, step_error
from workers.folds import Folds
from workers.keys import Keys
from workers.loaded import Beside, Loaded
from workers.member import Member
from workers.naming import Named, Naming
from workers.residency import Residency
from workers.resident import BlobStore, Resident
from workers.sharing import Sharing, free, in_pieces

if TYPE_CHECKING:
    import torch


class Answer(Struct, frozen=True):
    """A result, the frames that follow it, and the blobs that must be stored before anyone may hear of it."""

    result: StepResult
    frames: tuple[bytes, ...] = ()
    blobs: Mapping[str, bytes] = {}


def asking(step: Made | Asking) -> Asking:
    """A step as one that asks, whether or not it does. A step is others' code: it may make anything."""
    made = step if isinstance(step, Made) else (yield from step)
    if not isinstance(made, Made):
        raise TypeError(f"a step returned {type(made).__name__} where Made is wanted")
    return made


class Executor:
    """Runs a unit or some together. The same units in the same order give the same answers on every rank."""

    def __init__(
        self,
        models: Mapping[str, Loaded],
        blobs: BlobStore,
        *,
        stores: bool = True,
        device: str = "cpu",
        caches: Caches | None = None,
    ) -> None:
        self.caches = caches or Caches()
        self.resident = Resident(blobs, device, self.caches)
        self.sharing = Sharing()
        self._models = models
        self._blobs = blobs
        self._stores = stores
        self.tier: Tier | None = None
        self._keys = Keys(models)
        components = {name: model.components for name, model in models.items()}
        self.residency = Residency(components, self._keys.origin, self.caches)
        self._folds = Folds(models, self.resident, self._keys, self._folded)

    def compile(self, tier: Tier) -> None:
        """From the next component on that is loaded."""
        self.tier, self.residency.finish = tier, tier.compile

    def run(self, unit: WorkUnit, frames: list[bytes]) -> Answer:
        return self.keep(self.execute(unit, frames))

    def run_batch(self, batch: Batch, frames: Sequence[bytes]) -> list[Answer]:
        return [self.keep(answer) for answer in self.execute_batch(batch, frames)]

    def keep(self, answer: Answer) -> Answer:
        """Store what must be stored. May be called on another thread, while the next unit is executed."""
        try:
            if answer.blobs:
                self._blobs.put_named(answer.blobs)
        except Exception as error:  # noqa: BLE001 - as in a step: it is the answer
            made = answer.result
            return Answer(_failed(made.id, step_error(error), made.batch, made.batch_seconds))
        return Answer(answer.result, answer.frames)

    def execute(self, unit: WorkUnit, frames: list[bytes]) -> Answer:
        """An error of the step is an answer; only what breaks the process itself is raised."""
        [answer] = self._patiently([(unit, frames)])
        return answer

    def execute_batch(self, batch: Batch, frames: Sequence[bytes]) -> list[Answer]:
        """The units' answers, in their order. Those that cannot go together are executed one after the other."""
        return [
            answer for some in turns(members(batch, frames), self._goes_together) for answer in self._patiently(some)
        ]

    def _goes_together(self, plan: WorkPlan) -> bool:
        """Ranks that share branches do so for one step after the other; what is compiled is so for one step's rows."""
        return plan.together and plan.instance in self._models and not self._is_shared(plan) and self.tier is None

    def _patiently(self, units: Sequence[Arrived]) -> list[Answer]:
        """A step that runs out of memory has one more try, alone and in pieces, with what all others can spare.

        One that ranks share has not: a rank that began again would exchange with others that are further on.
        """
        answers = self._execute(units)
        return [
            self._again(*arrived) if _ran_out(answer) and not self._is_shared(arrived[0].plan) else answer
            for arrived, answer in zip(units, answers, strict=True)
        ]

    def _again(self, unit: WorkUnit, frames: Sequence[bytes]) -> Answer:
        self._make_room(unit.id.job)
        [answer] = self._execute([(unit, frames)], in_pieces=True)
        return answer

    def _make_room(self, job: str) -> None:
        """For its step, which has run: what that did not take and nobody else holds goes, or can be made again."""
        self.caches.give_up(but={WEIGHTS})
        self.caches.drop(FEATURE, lambda key: True)
        self.residency.spare()
        self.resident.make_room(job)
        free()

    def _execute(self, units: Sequence[Arrived], *, in_pieces: bool = False) -> list[Answer]:
        self.residency.begin()
        began = perf_counter()
        those = [Member(unit, in_pieces=in_pieces) for unit, _ in units]
        try:
            for one, (_, frames) in zip(those, units, strict=True):
                with one.failing():
                    self._read(one, frames)
            ran = [one for one in those if one.made is None]
            self._make(ran)
        except NotCompiled:
            return self._execute(units, in_pieces=in_pieces)
        took = perf_counter() - began - self.residency.loading_s
        return [self._named(one, len(ran), took) if one in ran else self._named(one, 1, 0.0) for one in those]

    def _read(self, one: Member, frames: Sequence[bytes]) -> None:
        unit, job = one.unit, one.job
        self.resident.follow(job, unit.id.epoch)
        self.resident.admit(job, unit.keep, dict(zip(unit.inline, frames, strict=True)))
        if unit.refolds:
            self._folds.refold(one)
        one.reads = {name: self.resident.resolve(job, ref) for name, ref in unit.plan.reads.items()}
        one.tensors = self.resident.read(job, one.reads)

    def _make(self, those: Sequence[Member]) -> None:
        if len(those) == 1:
            [one] = those
            with one.failing():
                one.made, one.reused = self._step(one, one.unit.plan, one.tensors)
            return
        with self._computing():
            steps = (self._looked_at(one.job, one.unit.plan, one.tensors) for one in those)
            for one, made in zip(those, side_by_side.run(steps, self.sharing.evaluate), strict=True):
                with one.failing():
                    one.made = _or_raised(made)

    def _named(self, one: Member, batch: int, took: float) -> Answer:
        """The answer. What the step derives is made of what it made, once that has its names."""
        with one.failing():
            if isinstance(one.made, Made):
                return self._answer(one, one.made, *self._names(one, one.made), batch, took)
        assert isinstance(one.made, StepError)
        return Answer(_failed(one.unit.id, one.made, batch, took))

    def _names(self, one: Member, made: Made) -> tuple[Mapping[str, Named], Naming]:
        plan = one.plan
        naming = Naming(one.reads, one.tensors, self.resident.unstored(one.job), self.resident.device)
        derived = self._folds.of_body(plan, made)
        named = naming.name({name: tensor for name, tensor in made.tensors.items() if name not in derived})
        if plan.derives:
            derived = derived or self._folds.of(one, made, named)
            named |= naming.name(derived, store=plan.snapshot)
        if plan.writes is not None and set(named) != set(plan.writes):
            raise BrokenPromise(", ".join(sorted(set(named) ^ set(plan.writes))))
        self.resident.slabs(one.job, self._keys.slabs(plan, {name: kept.ref for name, kept in named.items()}))
        return named, naming

    def _is_shared(self, plan: WorkPlan) -> bool:
        model = self._models.get(plan.instance)
        return model is not None and COMPONENT in model.beside

    def _step(self, one: Member, plan: WorkPlan, tensors: "Mapping[str, torch.Tensor]") -> tuple[Made, bool]:
        """What the body makes, or has made of the same before, and whether it has."""
        key = self._feature(one.job, plan)
        if key is not None and (kept := self.caches.get(FEATURE, key, one.job)) is not None:
            return kept, True
        made = self._computed(one, plan, tensors)
        if key is not None:
            self.caches.put(FEATURE, key, made, made.nbytes, one.job)
        return made, False

    def _folded(self, one: Member, plan: WorkPlan, tensors: "Mapping[str, torch.Tensor]") -> Made:
        made, _ = self._step(one, plan, tensors)
        return made

    def _computed(self, one: Member, plan: WorkPlan, tensors: "Mapping[str, torch.Tensor]") -> Made:

        def answered(forwards: Mapping[str, Forward]) -> dict[str, Outputs]:
            how = in_pieces if one.in_pieces else Forward.__call__
            components = self._models[plan.instance].beside
            return evaluate(components, {branch: partial(how, forward) for branch, forward in forwards.items()})

        with self._computing():
            return driven(self._looked_at(one.job, plan, tensors), answered)

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """What steps take is held until they have made all that they make."""
        import torch

        try:
            with torch.inference_mode():
                yield
        finally:
            self.caches.release(STEP)
            self.residency.settle()

    def _looked_at(self, job: str, plan: WorkPlan, tensors: "Mapping[str, torch.Tensor]") -> Asking:
        made = yield from self._body(job, plan, tensors)
        finite.check(plan, made, tensors)
        return made

    def _body(self, job: str, plan: WorkPlan, tensors: "Mapping[str, torch.Tensor]") -> Asking:
        return (yield from asking(self._models[plan.instance].bodies[plan.kind](self._components(plan), plan, tensors)))

    def _components(self, plan: WorkPlan) -> Components:
        """The modules of the plan's model, and what its bodies are given besides."""
        model = self._models[plan.instance]
        if model.family is None:
            return Beside(model.components, model.beside) if model.beside else model.components
        adapters = Adapters(self._keys.origin(plan.instance), self.caches)
        return Beside(self.residency.components(plan.instance), {**model.beside, lora.COMPONENT: adapters})

    def _feature(self, job: str, plan: WorkPlan) -> CacheKey | None:
        """None for a step whose outputs are no other's."""
        if not plan.feature:
            return None
        reads = {name: self.resident.resolve(job, ref) for name, ref in plan.reads.items()}
        return self._keys.feature(replace(plan, reads=reads))

    def _answer(
        self, one: Member, made: Made, named: Mapping[str, Named], naming: Naming, batch: int, took: float
    ) -> Answer:
        unit = one.unit.id
        for name, kept in named.items():
            self.resident.put(unit.job, kept.ref, kept.tensor, promised(unit, name))
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
            tensors={name: kept.ref for name, kept in named.items()},
            artifacts=tuple(artifacts),
            scalars=made.scalars,
            seconds=took / batch,
            loading_s=self.residency.loading_s / batch,
            inline=tuple(inline),
            reused=one.reused,
            batch=batch,
            batch_seconds=took,
        )
        return Answer(result, tuple(inline.values()), large if self._stores else {})


def _or_raised(made: Made | Exception) -> Made:
    if isinstance(made, Exception):
        raise made
    return made


def _failed(unit: UnitId, error: StepError, batch: int, took: float) -> StepResult:
    return StepResult(id=unit, error=error, seconds=took / batch, batch=batch, batch_seconds=took)


def _ran_out(answer: Answer) -> bool:
    error = answer.result.error
    return error is not None and error.kind == OOM
