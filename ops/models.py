"""The models that a data folder has registered: a file that `engine models add` writes, and what is loaded by it."""

from pathlib import Path

import msgspec

from cards import registry
from cards.model import Model
from cards.registry import Registry
from ops.errors import BadSettings
from ops.settings import Settings

FILE = "models.json"


def read_models(settings: Settings) -> tuple[Model, ...]:
    """Raises BadSettings."""
    file = models_file(settings)
    if not file.is_file():
        return ()
    try:
        return msgspec.json.decode(file.read_bytes(), type=tuple[Model, ...])
    except (OSError, msgspec.MsgspecError) as error:
        raise BadSettings(f"cannot read {file}: {error}; `engine models add` writes it") from error


def families_of(settings: Settings) -> Registry:
    """All that this engine may serve. Raises NoFamily, InvalidCard, BadCheckpoint, BadSettings."""
    return registry.load(settings.families, read_models(settings))


def models_file(settings: Settings) -> Path:
    return settings.data / FILE
