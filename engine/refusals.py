"""Errors on their way from one engine to another: by a tag that is spelled out, with the message and the fields."""

from typing import Any

from msgspec import Struct

from engine.errors import (
    Draining,
    EngineError,
    GoneOn,
    HistoryError,
    JobNotFound,
    LoopFailed,
    NoSuchPlace,
    NoSuchStep,
    NotAllowed,
    Overtaken,
    StoreTrouble,
    TensorsGone,
    Unrunnable,
)

TAGS: dict[str, type[EngineError]] = {
    "job_not_found": JobNotFound,
    "not_allowed": NotAllowed,
    "gone_on": GoneOn,
    "no_such_step": NoSuchStep,
    "tensors_gone": TensorsGone,
    "unrunnable": Unrunnable,
    "no_such_place": NoSuchPlace,
    "draining": Draining,
    "overtaken": Overtaken,
    "store_trouble": StoreTrouble,
    "loop_failed": LoopFailed,
    "unreadable_history": HistoryError,
}
"""What a verb may raise; a class comes before those above it."""


class Refused(Struct, frozen=True):
    """`fields` are the error's attributes, as they were."""

    tag: str
    message: str
    fields: dict[str, Any] = {}


def refused(error: EngineError) -> Refused:
    tag = next(tag for tag, kind in TAGS.items() if isinstance(error, kind))
    return Refused(tag, str(error), vars(error))


def to_error(refused: Refused) -> EngineError:
    """The error as it was raised there. One with a tag of a newer engine is trouble that may be over soon."""
    kind = TAGS.get(refused.tag, StoreTrouble)
    error = kind.__new__(kind)
    error.args = (refused.message,)  # its own constructor would make the message of other arguments
    vars(error).update(refused.fields)
    return error
