"""Name -> family. A family is a module with a `FAMILY`, or what was registered under a name: a checkpoint directory, or
a workflow of others.

The two lists below are the only lists of models.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module

from cards import checkpoint, workflow
from cards.checkpoint import Checkpoint
from cards.errors import BadCheckpoint, CardError, InvalidCard, NoFamily, UnknownModel, UnusableModel
from cards.family import Family
from cards.model import Model
from cards.wire import ModelIdentity

log = logging.getLogger("keyframe.cards")

DEFAULT_FAMILIES = ("cards.shapes.family",)

PIPELINES = {
    "LTX2Pipeline": "cards.ltx2.family",
    "Flux2KleinPipeline": "cards.flux2.family",
    "WanImageToVideoPipeline": "cards.wan.family",
    "WanPipeline": "cards.wan.family",
    "WanDMDPipeline": "cards.wan.family",
}
"""By the pipeline that a checkpoint's model index names: a module whose `open(model, checkpoint)` gives its family."""

Families = Mapping[str, Family]

UNFIT = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, MemoryError)
"""What reckoning with a value raises that is not of the kind or size that it should be."""


class Registry(Families):
    """`unusable` says of each registered model that cannot be opened why, and the remedy. It stops no other."""

    def __init__(self, families: Families, unusable: Mapping[str, str] | None = None) -> None:
        self._families = families
        self.unusable = unusable or {}

    def __getitem__(self, name: str) -> Family:
        return self._families[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._families)

    def __len__(self) -> int:
        return len(self._families)


NO_OTHERS = Registry({})


def load(modules: Iterable[str] = DEFAULT_FAMILIES, models: Iterable[Model] = ()) -> Registry:
    """Import the families and check their cards, before any device is touched. Raises NoFamily, InvalidCard."""
    families: dict[str, Family] = {}
    unusable: dict[str, str] = {}
    for module in modules:
        _add(families, module, _checked(_import(module)))
    for model in sorted(models, key=lambda model: model.is_workflow):  # a workflow's stages are there before it
        try:
            family = open_model(model, Registry(families, unusable))
        except (BadCheckpoint, InvalidCard, UnusableModel) as error:
            unusable[model.name] = _reason(model, error)
        else:
            _add(families, model.folder or "a workflow", family)
    return Registry(families, unusable)


def needed(registry: Registry, model: str) -> Families:
    """The families that a model's jobs run: its own, and those of its stages. Raises UnknownModel, UnusableModel."""
    family = find(registry, model)
    stages = family.card.stages or {}
    return {model: family} | {stage.model: find(registry, stage.model) for stage in stages.values()}


def tell_unusable(registry: Registry) -> None:
    """In the log of who serves without them."""
    for name, reason in registry.unusable.items():
        log.error("%s", UnusableModel(name, reason))


def open_model(model: Model, others: Registry = NO_OTHERS) -> Family:
    """The family of a registered checkpoint, or of a workflow of others.

    Raises BadCheckpoint, InvalidCard, UnusableModel for a stage.
    """
    if not model.is_workflow:
        return _checked(family_of(model, checkpoint.read(model.root)))
    for stage in model.options.values():
        if stage in others.unusable:
            raise UnusableModel(stage, others.unusable[stage])
    return _checked(workflow.open(model, others))


def family_of(model: Model, found: Checkpoint) -> Family:
    if found.pipeline not in PIPELINES:
        raise BadCheckpoint(model.root, f"{found.pipeline} is of no family here; there are {', '.join(PIPELINES)}")
    module = import_module(PIPELINES[found.pipeline])
    try:
        family: Family = module.open(model, found)
    except UNFIT as error:  # a config is somebody else's file: any value may be of any type
        problem = f"a value in its configs is of no use to {found.pipeline}: {type(error).__name__}: {error}"
        raise BadCheckpoint(model.root, problem) from error
    return family


def find(registry: Registry, model: str) -> Family:
    """Raises UnknownModel, which names those there are, UnusableModel."""
    if model in registry.unusable:
        raise UnusableModel(model, registry.unusable[model])
    if model not in registry:
        raise UnknownModel(model, registry)
    return registry[model]


def identity(family: Family) -> ModelIdentity:
    return ModelIdentity(family.card.name, family.card.digest, family.weights_digest())


def _add(families: dict[str, Family], source: str, family: Family) -> None:
    if family.card.name in families:
        raise InvalidCard(family.card.name, "name", f"is taken twice, the second time by {source}")
    families[family.card.name] = family


def _reason(model: Model, error: CardError) -> str:
    if isinstance(error, UnusableModel):
        return f"its stage {error.name!r} cannot be used: {error.reason}"
    what = "--option picture=NAME --option clip=NAME" if model.is_workflow else "DIR"
    again = f"engine models add {model.name} {what} --replace"
    return f"{error}; restore it, or {again}, or engine models remove {model.name}; then start the engine again"


def _import(module: str) -> Family:
    try:
        code = import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # it is there, and lacks another
        raise NoFamily(module, "is no module that can be imported here") from error
    if not hasattr(code, "FAMILY"):
        raise NoFamily(module, "has no FAMILY")
    family: Family = code.FAMILY
    return family


def _checked(family: Family) -> Family:
    family.card.validate()
    for name, spec in family.card.loops.items():
        if spec.semantics not in family.loops:
            raise InvalidCard(family.card.name, f"loops.{name}.semantics", f"no code here runs {spec.semantics!r}")
    return family
