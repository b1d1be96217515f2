"""Name -> family. A family is a module with a `FAMILY`; the default list below is the only list of models."""

from collections.abc import Iterable, Mapping
from importlib import import_module

from cards.errors import InvalidCard, NoFamily, UnknownModel
from cards.family import Family
from cards.wire import ModelIdentity

DEFAULT_FAMILIES = ("cards.shapes.family",)

Registry = Mapping[str, Family]


def load(modules: Iterable[str] = DEFAULT_FAMILIES) -> Registry:
    """Import the families and check their cards, before any device is touched. Raises NoFamily, InvalidCard."""
    registry: dict[str, Family] = {}
    for module in modules:
        family = _import(module)
        _check(family)
        if family.card.name in registry:
            raise InvalidCard(family.card.name, "name", f"is taken twice, the second time by {module}")
        registry[family.card.name] = family
    return registry


def find(registry: Registry, model: str) -> Family:
    """Raises UnknownModel, which names those there are."""
    if model not in registry:
        raise UnknownModel(model, registry)
    return registry[model]


def identity(family: Family) -> ModelIdentity:
    return ModelIdentity(family.card.name, family.card.digest, family.weights_digest())


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
