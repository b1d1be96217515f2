"""
CardError
 - InvalidCard       a card that contradicts itself; found before any device is touched
 - InvalidRequest    a request that the card's recipe cannot serve; names the field and the remedy
 - UnknownModel      no card of that name
 - UnusableModel     a registered model that cannot be opened
 - NoFamily          a module that is not there, or that has no family
 - BadCheckpoint     a checkpoint directory that lacks something, or is of no family here
 - WeightsChanged    files that are other weights than those which this process has spoken of
 - Unmeasured        a model whose family does not say how large what it makes is: no job of it can be planned
 - BadLora           a LoRA that does not fit the model
 - BadExtension      an extension that is not there, or cannot do what it was told
 - BadPlan           axes or degrees that no pool of ranks could have
 - NothingToShare    no model of a pool has what its ranks could share along an axis
 - NotFinite         a step made a NaN, or an Inf where somebody watches for them
 - NoReference       nothing that a model, or a request to it, can be held against
"""

from collections.abc import Iterable, Mapping
from pathlib import Path


class CardError(Exception):
    """Root of what cards raise."""


class InvalidCard(CardError):
    """`field` is a path into the card, such as `recipe.assumes_loop`."""

    def __init__(self, card: str, field: str, problem: str) -> None:
        super().__init__(f"card {card!r}: {field}: {problem}")
        self.field = field
        self.problem = problem


class InvalidRequest(CardError):
    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class UnknownModel(CardError):
    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(f"no model named {name!r}; this engine has: {', '.join(sorted(known))}")
        self.name = name


class UnusableModel(CardError):
    """`reason` ends with the remedy."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"model {name!r} cannot be used: {reason}")
        self.name = name
        self.reason = reason


class NoFamily(CardError):
    def __init__(self, module: str, problem: str) -> None:
        super().__init__(f"families: {module!r} {problem}")
        self.module = module


class BadCheckpoint(CardError):
    """`wrong` says it of each file or folder, where it is more than one thing that is amiss."""

    def __init__(self, path: Path, problem: str, wrong: Mapping[Path, str] | None = None) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem
        self.wrong = wrong or {path: problem}


class WeightsChanged(CardError):
    def __init__(self, folder: Path) -> None:
        super().__init__(f"{folder}: its files have changed since this process began: start it again to serve them")
        self.folder = folder


class Unmeasured(CardError):
    def __init__(self, model: str, problem: str) -> None:
        super().__init__(f"{model}: nothing is known of the sizes of its tensors: {problem}")
        self.model = model


class BadLora(CardError):
    def __init__(self, digest: str, problem: str) -> None:
        super().__init__(f"LoRA {digest[:16]}: {problem}")
        self.digest = digest


class BadExtension(CardError):
    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"extensions: {name!r} {problem}")
        self.name = name


class BadPlan(CardError):
    def __init__(self, problem: str) -> None:
        super().__init__(f"parallel: {problem}")
        self.problem = problem


class NothingToShare(CardError):
    """`reasons` are by model."""

    def __init__(self, axis: str, reasons: Mapping[str, str]) -> None:
        each = "; ".join(f"{model}: {reason}" for model, reason in reasons.items()) or "there is no model"
        super().__init__(f"parallel: {axis} has nothing to share among ranks: {each}; leave it out")
        self.axis = axis
        self.reasons = reasons


class NotFinite(CardError):
    def __init__(self, loop: str, step: int, tensor: str, *, nan: int, inf: int, of: int) -> None:
        super().__init__(f"{loop} step {step}: {tensor} holds {nan} NaN and {inf} Inf in {of} values")
        self.tensor = tensor


class NoReference(CardError):
    def __init__(self, model: str, problem: str) -> None:
        super().__init__(f"{model} has no reference that runs here: {problem}")
        self.model = model
