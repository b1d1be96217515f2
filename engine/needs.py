"""What a job needs to go on: the tensors that its next steps read, the bytes that must be there for that, and how the
tensors are made again whose bytes were never stored. Pure.

A refold is kept for as long as something that the job may still read comes of it. A snapshot needs none, so there are
never more than lie between two snapshots.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from msgspec.structs import replace

from cards.folding import fold_of, lacking
from cards.loop import LoopState
from cards.wire import Refold, TensorRef, WorkPlan
from engine.events import StepCompleted
from engine.job import Job


def tensors(job: Job, state: LoopState | None) -> dict[str, TensorRef]:
    """All tensors that the job's next steps may read, by digest."""
    if job.terminal:
        return {}
    states = [one for one in (state, *(stage.state for stage in job.route)) if one is not None]
    refs = [ref for one in states for ref in (*one.tensors.values(), *one.inputs.values())]
    return {ref.digest: ref for ref in (*refs, *job.outputs.values())}


def needs(job: Job, state: LoopState | None, refolds: Sequence[Refold]) -> tuple[str, ...]:
    """The blobs that must be stored for the job to go on."""
    return tuple(lacking(tensors(job, state), refolds).stored)


def useful(refolds: tuple[Refold, ...], job: Job, state: LoopState | None) -> tuple[Refold, ...]:
    """Those that make something which the job may still read."""
    return lacking(tensors(job, state), refolds).refolds if refolds else refolds


def grown(refolds: tuple[Refold, ...], plan: WorkPlan, done: StepCompleted) -> tuple[Refold, ...]:
    """With one that makes what this step derived; what it stored need not be made any more."""
    if not refolds and not done.derived:
        return refolds
    outputs = {name: ref for name, ref in done.tensors.items() if name not in done.derived}
    fold = fold_of(plan, outputs, done.scalars)
    makes = {name: done.tensors[name] for name in done.derived if name in done.tensors}
    stored = {ref.digest for ref in outputs.values()}
    there = {ref.digest for ref in fold.reads.values()}  # a tensor that is handed through is not made
    rest = [*(_without(stored, one) for one in refolds), _without(there, Refold(fold, makes))]
    return tuple(one for one in rest if one.makes)


def _without(digests: AbstractSet[str], refold: Refold) -> Refold:
    return replace(refold, makes={name: ref for name, ref in refold.makes.items() if ref.digest not in digests})
