"""What size of clip a request asks for, against what its card can make."""

import re
from typing import TYPE_CHECKING

from msgspec import UNSET

from cards.card import Canvas, ModelCard, OutputSpec
from cards.errors import InvalidRequest

if TYPE_CHECKING:
    from cards.request import ResolvedRequest

SIZE = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})", re.ASCII)


def choose(size: str | None, frames: int | None, card: ModelCard) -> tuple[str | None, int | None]:
    """The size and the frames, filled in; None for a card that makes one size only. Raises InvalidRequest."""
    output = card.output
    if output.canvas is UNSET:
        _only(size, frames, card.name, output)
        return None, None
    width, height = (output.width, output.height) if size is None else _parse(size, output.canvas)
    return f"{width}x{height}", _frames(output.frames if frames is None else frames, output.canvas)


def pixels(request: "ResolvedRequest", output: OutputSpec) -> tuple[int, int, int]:
    """Width, height and frames of what a request makes."""
    found = SIZE.fullmatch(request.size or "")
    width, height = (int(found[1]), int(found[2])) if found else (output.width, output.height)
    return width, height, request.frames or output.frames


def check_sides(request: "ResolvedRequest", output: OutputSpec, most: int) -> None:
    """What a family's positions reach to is not in the card. Raises InvalidRequest."""
    width, height, _ = pixels(request, output)
    if max(width, height) > most:
        raise InvalidRequest("size", f"{width}x{height}: width and height may be up to {most} each")


def check_aspect(request: "ResolvedRequest", output: OutputSpec, most: int) -> None:
    """Raises InvalidRequest."""
    width, height, _ = pixels(request, output)
    if max(width, height) > most * min(width, height):
        raise InvalidRequest("size", f"{width}x{height}: one side may be up to {most} times the other")


def _only(size: str | None, frames: int | None, name: str, output: OutputSpec) -> None:
    if size not in (None, own := f"{output.width}x{output.height}"):
        raise InvalidRequest("size", f"{size!r}: {name} makes {own} only; leave it out")
    if frames not in (None, output.frames):
        raise InvalidRequest("frames", f"{frames}: {name} makes {output.frames} only; leave it out")


def _parse(size: str, canvas: Canvas) -> tuple[int, int]:
    presets = ", ".join(f"{one.width}x{one.height}" for one in canvas.presets)
    found = SIZE.fullmatch(size)
    if found is None:
        raise InvalidRequest("size", f"{size!r} is no width and height; give one such as {presets}")
    width, height = int(found[1]), int(found[2])
    if width % canvas.multiple or height % canvas.multiple:
        raise InvalidRequest(
            "size", f"{size}: width and height must be multiples of {canvas.multiple}; made for are {presets}"
        )
    if width * height > canvas.most_pixels:
        raise InvalidRequest(
            "size",
            f"{size} has {width * height} pixels; up to {canvas.most_pixels} are possible, made for are {presets}",
        )
    return width, height


def _frames(frames: int, canvas: Canvas) -> int:
    step, most, first = canvas.frames_multiple, canvas.most_frames, canvas.frames_first or 1
    if most == 1 != frames:
        raise InvalidRequest("frames", f"{frames}: this is a picture, which has 1; leave it out")
    if not first <= frames <= most or (frames - first) % step:
        more = "one" if first == 1 else first
        raise InvalidRequest(
            "frames",
            f"{frames} is not possible; it must be {more} more than a multiple of {step}, from {first} to {most}",
        )
    return frames
