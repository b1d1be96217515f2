"""What a kept value was made of: all that can change it, typed and hashable.

Nothing is left out because it seldom matters: wrong reuse is worse than none. A job's name is never there, for nothing
that a step makes depends on it. Numbers are in their written form, since 1, 1.0 and True are equal and are not the same
to a step.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol, runtime_checkable

import msgspec
from blake3 import blake3
from msgspec import Struct

from cards import lora
from cards.card import LoopSpec, ModelCard, Precision
from cards.family import Family
from cards.wire import Scalar, TensorRef, WorkPlan

CONTRACT = "1"
"""Of these keys: if they come to say less or more of what a value is made of, it changes."""

SHAPE = frozenset({"width", "height", "frames", "fps"})
SCHEDULER = frozenset({"solver", "shift", "steps", "sigmas", "boundary"})
GUIDANCE = frozenset({"guidance", "guidance_2", "policy"})
SEED = "seed"
"""Scalars by what they say. One that is in none of these is an input."""


class Version(Struct, frozen=True):
    """A component, and its weights by content."""

    component: str
    weights: str
    precision: Precision = "float32"


class Adapter(Struct, frozen=True):
    """Of a stack, in its order. `digest` is that of the file: another file of the same name is another adapter."""

    digest: str
    strength: str = ""


class CacheKey(Struct, frozen=True, kw_only=True):
    """`components` are all that the value was computed with; `loop` names the maths, and is None for what no loop made.

    `inputs` are the other tensors and scalars that went in, by name: digests, written numbers. `makes` is what was
    asked for. `step` is None where the value is the same at each.
    """

    model: str
    components: tuple[Version, ...]
    loop: str | None = None
    kind: str = ""
    adapters: tuple[Adapter, ...] = ()
    parallel: str = ""
    shape: str = ""
    layout: str = ""
    scheduler: str = ""
    guidance: str = ""
    seed: str = ""
    inputs: tuple[tuple[str, str], ...] = ()
    makes: tuple[str, ...] = ()
    step: int | None = None
    contract: str = CONTRACT

    def derives_from(self, model: str, component: str) -> bool:
        return self.model == model and any(version.component == component for version in self.components)


@runtime_checkable
class Versioned(Protocol):
    """A family that knows the weights of each component apart."""

    def component_digests(self) -> Mapping[str, str]: ...


class Origin(Struct, frozen=True):
    """A loaded model, as far as keys name it. `parallel` says how its ranks share a step."""

    card: ModelCard
    versions: Mapping[str, Version]
    parallel: str = ""


def origin(family: Family, parallel: str = "") -> Origin:
    """All components of a family that does not know them apart are as new as the newest."""
    card = family.card
    of_all = "" if isinstance(family, Versioned) else family.weights_digest()
    digests = family.component_digests() if isinstance(family, Versioned) else dict.fromkeys(card.components, of_all)
    versions = {name: Version(name, digests[name], spec.precision) for name, spec in card.components.items()}
    return Origin(card, versions, parallel)


def of_feature(made_by: Origin, plan: WorkPlan) -> CacheKey:
    """Of what a step makes that depends on neither job nor step. The plan's reads are tensors, and no promises."""
    return _of_step(made_by, plan, None)


def of_slab(made_by: Origin, plan: WorkPlan, name: str, ref: TensorRef) -> CacheKey:
    """Of a tensor that a step left under this name for later steps."""
    key = _of_step(made_by, plan, plan.step)
    return msgspec.structs.replace(key, inputs=(*key.inputs, (f"made/{name}", ref.digest)))


def of_adapter(made_by: Origin, component: str, file: str) -> CacheKey:
    """Of an adapter beside a component, at no strength yet. `file` is the digest of what it is loaded from."""
    versions = (made_by.versions[component],)
    return CacheKey(model=made_by.card.name, components=versions, adapters=(Adapter(file),))


def of_weights(made_by: Origin, component: str) -> CacheKey:
    return CacheKey(model=made_by.card.name, components=(made_by.versions[component],))


def loop_of(card: ModelCard, plan: WorkPlan) -> LoopSpec | None:
    """That of a plan which this card's model runs: as a stage of a workflow its loop is called `<stage>-<loop>`."""
    return card.loops.get(plan.loop) or card.loops.get(plan.loop.partition("-")[2])


def needs(card: ModelCard, plan: WorkPlan) -> tuple[str, ...]:
    """What a plan that this card's model runs is to have loaded, as its card says: `<model>/<component>`."""
    loop = loop_of(card, plan)
    return () if loop is None else tuple(f"{card.name}/{component}" for component in loop.components)


def _of_step(made_by: Origin, plan: WorkPlan, step: int | None) -> CacheKey:
    loop = loop_of(made_by.card, plan)
    names = loop.components if loop is not None else tuple(made_by.versions)
    files = {name: ref for name, ref in plan.reads.items() if name.startswith(f"{lora.INPUT}/")}
    known = {*SHAPE, *SCHEDULER, *GUIDANCE, SEED, *files}
    reads = {f"read/{name}": ref.digest for name, ref in plan.reads.items() if name not in files}
    rest = {name: _content(value) for name, value in plan.scalars.items() if name not in known}
    return CacheKey(
        model=made_by.card.name,
        components=tuple(made_by.versions[name] for name in names),
        loop=plan.loop if loop is None else loop.semantics,
        kind=plan.kind,
        adapters=tuple(Adapter(ref.digest, _written(plan.scalars.get(name, 1.0))) for name, ref in files.items()),
        parallel=made_by.parallel,
        shape=_those(plan.scalars, SHAPE),
        layout=_written({name: (ref.dtype, ref.shape, ref.strides) for name, ref in sorted(plan.reads.items())}),
        scheduler=_those(plan.scalars, SCHEDULER),
        guidance=_those(plan.scalars, GUIDANCE),
        seed=_those(plan.scalars, {SEED}),
        inputs=(*sorted(reads.items()), *sorted(rest.items())),
        makes=tuple(sorted({*(plan.writes or ()), *plan.derives, *plan.emits})),
        step=step,
    )


def _those(scalars: Mapping[str, Scalar], names: Iterable[str]) -> str:
    return _written({name: scalars[name] for name in sorted(names) if name in scalars})


def _written(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _content(value: Scalar) -> str:
    return blake3(msgspec.json.encode(value)).hexdigest()
