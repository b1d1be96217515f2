"""What follows from what a step has made: by a fold of its kind, or by its own body where there is none.

It is made with the step, and again where it was not stored and is read.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from msgspec.structs import replace

from cards.family import Made
from cards.folding import FOLD, MADE, fold_of, lacking
from cards.wire import WorkPlan
from workers.errors import BrokenPromise, FoldDiffers
from workers.keys import Keys
from workers.loaded import Loaded
from workers.member import Member
from workers.naming import Named, Naming
from workers.resident import Resident

if TYPE_CHECKING:
    import torch

Step: TypeAlias = "Callable[[Member, WorkPlan, Mapping[str, torch.Tensor]], Made]"
"""Makes what a plan says, for a member."""


class Folds:
    def __init__(self, models: Mapping[str, Loaded], resident: Resident, keys: Keys, step: Step) -> None:
        self._models = models
        self._resident = resident
        self._keys = keys
        self._step = step

    def of_body(self, plan: WorkPlan, made: Made) -> "dict[str, torch.Tensor]":
        """What the plan derives, where there is no fold for it and the step's body has made it all."""
        if self._has_body(plan, f"{plan.kind}{FOLD}") or not made.tensors.keys() >= {*plan.derives}:
            return {}
        return {name: made.tensors[name] for name in plan.derives}

    def of(self, one: Member, made: Made, outputs: Mapping[str, Named]) -> "dict[str, torch.Tensor]":
        """What the step's fold makes. It is given what a later refold will be given, to the layout."""
        derives = {*one.plan.derives}
        fold = fold_of(one.plan, {name: named.ref for name, named in outputs.items()}, made.scalars)
        tensors = {**one.tensors, **{f"{MADE}{name}": named.tensor for name, named in outputs.items()}}
        derived = self._step(one, fold, tensors).tensors
        if derived.keys() != derives or not outputs.keys().isdisjoint(derives):
            raise BrokenPromise(", ".join(sorted(derives ^ {*derived} | derives & {*outputs})))
        return derived

    def refold(self, one: Member) -> None:
        """Make what nobody stored, as far as it is not here, and then forget what it took."""
        unit, job = one.unit, one.job
        makes = {ref.digest: ref for refold in unit.refolds for ref in refold.makes.values()}
        kept = {*unit.keep, *(ref.digest for ref in unit.plan.reads.values())}
        wanted = {digest: ref for digest, ref in makes.items() if digest in kept}
        for refold in lacking(wanted, unit.refolds, self._resident.digests(job)).refolds:
            tensors = self._resident.read(job, refold.plan.reads)
            made = self._step(one, self._runnable(refold.plan), tensors)
            named = Naming(refold.plan.reads, tensors, frozenset(), self._resident.device).name(
                made.tensors, store=False
            )
            self._resident.slabs(job, self._keys.slabs(refold.plan, refold.makes))
            for name, ref in refold.makes.items():
                if name not in named or named[name].ref != ref:
                    found = named[name].ref.digest if name in named else "nothing"
                    raise FoldDiffers(refold.plan.step, name, ref.digest, found)
                self._resident.put(job, ref, named[name].tensor)
        self._resident.admit(job, kept, {})
        self._resident.unstored(job).update(makes.keys() & self._resident.digests(job))

    def _runnable(self, fold: WorkPlan) -> WorkPlan:
        """The fold, or the step itself where its body makes all that follows from it."""
        return fold if self._has_body(fold, fold.kind) else replace(fold, kind=fold.kind.removesuffix(FOLD))

    def _has_body(self, plan: WorkPlan, kind: str) -> bool:
        return kind in self._models[plan.instance].bodies
