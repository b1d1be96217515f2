"""`--lora FILE:STRENGTH`: a file as the body of a request has it, and as a job shows it."""

import base64
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cards import lora
from ops.errors import BadSettings


def read(asked: Sequence[str]) -> list[dict[str, Any]]:
    """Strength 1 where none is said. Raises BadSettings."""
    return [_read(one) for one in asked]


def as_shown(request: dict[str, Any]) -> dict[str, Any]:
    """A request's body with its files by content, to be compared with jobs."""
    if "loras" not in request:
        return request
    digests = [lora.file("lora", base64.b64decode(one["data"])).ref.digest for one in request["loras"]]
    strengths = [one["strength"] for one in request["loras"]]
    shown = [{"digest": digest, "strength": one} for digest, one in zip(digests, strengths, strict=True)]
    came = {f"{lora.INPUT}/{index}": digest for index, digest in enumerate(digests)}
    inputs = {"inputs": request["inputs"] | came} if "inputs" in request else {}
    return request | {"loras": shown} | inputs


def _read(asked: str) -> dict[str, Any]:
    name, colon, number = asked.rpartition(":")
    if not colon:
        name, number = asked, "1"
    try:
        strength = float(number)
    except ValueError:
        name, strength = asked, 1.0  # a colon of the file's name
    if not math.isfinite(strength):
        raise BadSettings(f"lora: {number} is no strength that a request can have")
    if not name:
        raise BadSettings(f"lora: {asked!r} names no file; give FILE or FILE:STRENGTH")
    try:
        data = Path(name).read_bytes()
    except OSError as error:
        raise BadSettings(f"lora: cannot read {name}: {error.strerror}") from error
    return {"data": base64.b64encode(data).decode(), "strength": strength}
