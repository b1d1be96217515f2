"""The models that a data folder has registered: a file that `engine models add` writes, and what is loaded by it."""

import fcntl
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from cards import registry
from cards.model import Model
from cards.registry import Registry
from ops.errors import BadSettings, OpsError
from ops.settings import Settings

FILE = "models.json"

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Names are parts of URLs and of instances."""

Models = tuple[Model, ...]


def read_models(settings: Settings) -> Models:
    """Raises BadSettings."""
    file = models_file(settings)
    if not file.is_file():
        return ()
    try:
        return msgspec.json.decode(file.read_bytes(), type=Models)
    except (OSError, msgspec.MsgspecError) as error:
        raise BadSettings(f"cannot read {file}: {error}; `engine models add` writes it") from error


def families_of(settings: Settings) -> Registry:
    """All that this engine may serve. Raises NoFamily, InvalidCard, BadSettings."""
    return registry.load(settings.families, read_models(settings))


def models_file(settings: Settings) -> Path:
    return settings.data / FILE


def named(settings: Settings, name: str) -> Model:
    """Raises BadSettings, which says what there is."""
    models = {model.name: model for model in read_models(settings)}
    if name not in models:
        there = ", ".join(models) or "none"
        raise BadSettings(f"no model named {name!r} is registered in {models_file(settings)}; there are: {there}")
    return models[name]


def check_name(settings: Settings, name: str, *, replace: bool) -> None:
    """Raises BadSettings for a name that cannot be, or that is taken."""
    if NAME.fullmatch(name) is None:
        raise BadSettings(f"name: {name[:80]!r} must be letters, digits, dots, dashes or underscores, up to 64")
    if name in registry.load(settings.families):
        raise BadSettings(f"name: {name!r} is that of a model that comes with {', '.join(settings.families)}")
    if not replace and any(model.name == name for model in read_models(settings)):
        raise BadSettings(f"name: {name!r} is taken; --replace registers it again")


def put(settings: Settings, model: Model, *, replace: bool) -> None:
    """Raises BadSettings if the name has been taken meanwhile, OpsError if nothing can be written, and CardError for a
    stage that a workflow has no use for.
    """

    def added(models: Models) -> Models:
        check_name(settings, model.name, replace=replace)
        there = (*(other for other in models if other.name != model.name), model)
        for using in _users(there, model.name):
            stages = registry.load((), [stage for stage in there if stage.name in using.options.values()])
            if not stages.unusable:  # else the workflow waits for that one's mending, whatever this one is
                registry.open_model(using, stages)
        return there

    _change(settings, added)


def remove(settings: Settings, name: str) -> Model:
    """Raises BadSettings if there is none, OpsError."""
    gone: list[Model] = []

    def without(models: Models) -> Models:
        gone.append(named(settings, name))
        if using := _users(models, name):
            named_so = ", ".join(other.name for other in using)
            raise BadSettings(f"name: {name!r} is a stage of {named_so}; remove that first")
        return tuple(other for other in models if other.name != name)

    _change(settings, without)
    return gone[0]


def _users(models: Models, name: str) -> list[Model]:
    """The workflows that it is a stage of."""
    return [other for other in models if other.is_workflow and name in other.options.values()]


def _change(settings: Settings, change: Callable[[Models], Models]) -> None:
    """One change at a time, each of them whole: a reader sees the file of before or the one of after."""
    file = models_file(settings)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with _locked(file.with_name(f"{file.name}.lock")):
            models = change(read_models(settings))
            _write(file, msgspec.json.format(msgspec.json.encode(models), indent=2) + b"\n")
    except OSError as error:
        raise OpsError(f"cannot write {file}: {error.strerror}") from error


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Ends with the process that holds it. The file stays: one that is removed would be two locks."""
    fd = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _write(file: Path, data: bytes) -> None:
    beside = file.with_name(f"{file.name}.new")  # one writer at a time: the lock is held
    with beside.open("wb") as opened:
        opened.write(data)
        opened.flush()
        os.fsync(opened.fileno())
    beside.replace(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
