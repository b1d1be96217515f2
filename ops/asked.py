"""What a person asks of a model in the flags of a command: the same ones wherever a job is made."""

import argparse
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from ops import loras
from ops.errors import BadSettings

T = TypeVar("T")

FIELDS = ("prompt", "negative_prompt", "seed", "steps", "guidance", "size", "frames", "continues")
"""Of a request, those that a flag has as they are."""


def flags(parser: argparse.ArgumentParser) -> None:
    """All but the prompt."""
    parser.add_argument("--negative-prompt", metavar="TEXT")
    parser.add_argument("--seed", type=int, metavar="N")
    parser.add_argument("--steps", type=int, metavar="N")
    parser.add_argument("--guidance", type=float, metavar="X")
    parser.add_argument("--size", metavar="WxH", help="pixels, as 832x480")
    parser.add_argument("--frames", type=int, metavar="N")
    parser.add_argument("--image", type=Path, metavar="FILE", help="for a model that starts from one")
    parser.add_argument(
        "--lora", action="append", default=[], metavar="FILE:STRENGTH", help="a LoRA; may be given repeatedly"
    )
    parser.add_argument("--continues", metavar="JOB", help="a completed job, whose clip this one's begins with")
    parser.add_argument(
        "--interceptor", type=_threshold, action="append", default=[], metavar="NAME=THRESHOLD",
        help="one that the model has enabled",
    )  # fmt: skip


def request(arguments: argparse.Namespace, *more: str) -> dict[str, Any]:
    """What was said, by the fields of a request's body; `more` are fields of this command. Raises BadSettings."""
    given = ((name, getattr(arguments, name)) for name in (*FIELDS, *more))
    asked = {name: value for name, value in given if value is not None}
    if arguments.lora:
        asked["loras"] = loras.read(arguments.lora)
    if arguments.interceptor:
        asked["interceptors"] = once("interceptor", arguments.interceptor)
    _check(asked)
    return asked


def image(arguments: argparse.Namespace) -> bytes | None:
    """Raises BadSettings."""
    file: Path | None = arguments.image
    try:
        return None if file is None else file.read_bytes()
    except OSError as error:
        raise BadSettings(f"image: cannot read {file}: {error.strerror}") from error


def once(flag: str, pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    """What a flag that may be repeated was given by name. Raises BadSettings for a name that comes again."""
    found: dict[str, T] = {}
    for name, value in pairs:
        if name in found:
            raise BadSettings(f"{flag}: {name!r} is given twice, as {found[name]} and as {value}; give it once")
        found[name] = value
    return found


def _threshold(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    try:
        threshold = float(number)
    except ValueError:
        threshold = math.nan
    if not name.isidentifier() or not math.isfinite(threshold):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=THRESHOLD, such as step_skip=0.1")
    return name, threshold


def _check(request: dict[str, Any]) -> None:
    """What could not even be asked for. Raises BadSettings."""
    for name, value in request.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise BadSettings(f"{name}: {value} is no number that a request can have")
        if isinstance(value, str) and any("\udc80" <= letter <= "\udcff" for letter in value):
            raise BadSettings(f"{name}: is not valid UTF-8")
