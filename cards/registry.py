"""Name -> family. A family is a module with a `FAMILY`, or what was registered under a name: a checkpoint directory, or
a workflow of others.

The two lists below are the only lists of models.
"""

from collections.abc import Iterable, Mapping
from importlib import import_module

from cards import checkpoint, workflow
from cards.checkpoint import Checkpoint
from cards.errors import BadCheckpoint, InvalidCard, NoFamily, UnknownModel
from cards.family import Family
from cards.model import Model
from cards.wire import ModelIdentity

DEFAULT_FAMILIES = ("cards.shapes.family",)

PIPELINES = {
    "LTX2Pipeline": "cards.ltx2.family",
    "Flux2KleinPipeline": "cards.flux2.family",
    "WanImageToVideoPipeline": "cards.wan.family",
    "WanPipeline": "cards.wan.family",
    "WanDMDPipeline": "cards.wan.family",
}
"""By the pipeline that a checkpoint's model index names: a module whose `open(model, checkpoint)` gives its family."""

Registry = Mapping[str, Family]

UNFIT = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, MemoryError)
"""What reckoning with a value raises that is not of the kind or size that it should be."""


def load(modules: Iterable[str] = DEFAULT_FAMILIES, models: Iterable[Model] = ()) -> Registry:
    """Import the families and check their cards, before any device is touched.

    Raises NoFamily, InvalidCard, BadCheckpoint.
    """
    registry: dict[str, Family] = {}
    for module in modules:
        _add(registry, module, _import(module))
    for model in sorted(models, key=lambda model: model.is_workflow):  # a workflow's stages are there before it
        family = workflow.open(model, registry) if model.is_workflow else open_model(model)
        _add(registry, model.folder or "a workflow", family)
    return registry


def needed(registry: Registry, model: str) -> Registry:
    """The families that a model's jobs run: its own, and those of its stages. Raises UnknownModel."""
    family = find(registry, model)
    stages = family.card.stages or {}
    return {model: family} | {stage.model: find(registry, stage.model) for stage in stages.values()}


def open_model(model: Model) -> Family:
    """The family of a registered checkpoint. Raises BadCheckpoint, InvalidCard."""
    found = checkpoint.read(model.root)
    return family_of(model, found)


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
    """Raises UnknownModel, which names those there are."""
    if model not in registry:
        raise UnknownModel(model, registry)
    return registry[model]


def identity(family: Family) -> ModelIdentity:
    return ModelIdentity(family.card.name, family.card.digest, family.weights_digest())


def _add(registry: dict[str, Family], source: str, family: Family) -> None:
    _check(family)
    if family.card.name in registry:
        raise InvalidCard(family.card.name, "name", f"is taken twice, the second time by {source}")
    registry[family.card.name] = family


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


def _check(family: Family) -> None:
    family.card.validate()
    for name, spec in family.card.loops.items():
        if spec.semantics not in family.loops:
            raise InvalidCard(family.card.name, f"loops.{name}.semantics", f"no code here runs {spec.semantics!r}")
