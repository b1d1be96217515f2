"""States that are folds: what a step derives from its outputs need not be stored, for it can be made again.

A plan's `derives` says which tensors those are. The step's body makes the others. The body `<kind>.fold` makes these,
of all that the step read and of what it made, which comes beside that as `made/<name>`: right after the step, and
again before a later one where nobody has them any more. Of what it returns only the tensors count. Where a family has
no such body, the step's own makes them too, and is run again for them.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from msgspec import Struct
from msgspec.structs import replace

from cards.wire import Refold, Resources, Scalar, TensorRef, WorkPlan

MADE = "made/"
FOLD = ".fold"

NOTHING: AbstractSet[str] = frozenset()


class Lacking(Struct, frozen=True):
    """What a device must be given: blobs that are `stored`, by digest, and `refolds` that make the rest of them."""

    stored: dict[str, TensorRef]
    refolds: tuple[Refold, ...] = ()


def fold_of(plan: WorkPlan, outputs: Mapping[str, TensorRef], scalars: Mapping[str, Scalar]) -> WorkPlan:
    """What makes the tensors that a step with these outputs derives."""
    return replace(
        plan,
        kind=f"{plan.kind}{FOLD}",
        reads=plan.reads | {f"{MADE}{name}": ref for name, ref in outputs.items()},
        scalars=plan.scalars | {f"{MADE}{name}": value for name, value in scalars.items()},
        writes=plan.derives,
        derives=(),
        snapshot=True,
        emits=(),
        resources=Resources(),
    )


def lacking(wanted: Mapping[str, TensorRef], refolds: Sequence[Refold], held: AbstractSet[str] = NOTHING) -> Lacking:
    """What makes the wanted tensors be there, on a device that holds some of them."""
    missing = {digest: ref for digest, ref in wanted.items() if digest not in held}
    run: list[Refold] = []
    for refold in reversed(refolds):
        makes = {ref.digest for ref in refold.makes.values() if ref.digest in missing}
        if makes:
            run.append(refold)
            missing = {digest: ref for digest, ref in missing.items() if digest not in makes}
            missing |= {ref.digest: ref for ref in refold.plan.reads.values() if ref.digest not in held}
    return Lacking(missing, tuple(reversed(run)))
