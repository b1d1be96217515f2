"""What comes with a request beside its words: tensors by the names of the card's inputs. No torch."""

import base64
import io
from collections.abc import Collection
from typing import TYPE_CHECKING

from msgspec import UNSET, Struct

from cards import codec
from cards.card import ModelCard
from cards.errors import InvalidRequest
from cards.wire import TensorRef

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMATS = ("PNG", "JPEG", "WEBP")
MOST_PIXELS = 1 << 26


class Given(Struct, frozen=True):
    """`data` is the blob that `ref` names; empty if it is stored already."""

    ref: TensorRef
    data: bytes = b""


def encoded(field: str, text: str) -> bytes:
    """The bytes of a data URL or of bare base64. Raises InvalidRequest."""
    head, comma, data = text.partition(",") if text.startswith("data:") else ("", "", text)
    if bool(head) != bool(comma) or (head and not head.endswith(";base64")):
        raise InvalidRequest(field, "is no data URL of base64: it begins with data:image/png;base64, or the like")
    try:
        return base64.b64decode("".join(data.split()), validate=True)
    except ValueError as error:  # also what is not ASCII
        raise InvalidRequest(
            field, "is neither base64 nor a data URL; send the file's bytes, not its address"
        ) from error


def picture(field: str, data: bytes) -> Given:
    """An image file as uint8 (H, W, 3). Raises InvalidRequest."""
    import numpy as np
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise InvalidRequest(field, f"has {image.width}x{image.height} pixels; up to {MOST_PIXELS} are taken")
            pixels: NDArray[np.uint8] = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InvalidRequest(field, "is no image that can be read; send a PNG, JPEG or WebP file") from error
    return Given(*codec.encode_array(pixels))


def check_inputs(given: Collection[str], card: ModelCard) -> None:
    """`given` are names. Raises InvalidRequest with the first that is missing or that the card does not take."""
    inputs = {} if card.inputs is UNSET else card.inputs
    several = {name for name, spec in inputs.items() if spec.kind == "lora"}
    for name in given:
        stem, _, index = name.partition("/")
        if name not in inputs.keys() - several and not (index and stem in several):
            raise InvalidRequest(
                name, f"{card.name} takes no such input; it takes: {', '.join(inputs) or 'none'}; leave it out"
            )
    for name, spec in inputs.items():
        if spec.required and name not in given:
            raise InvalidRequest(name, f"is missing: {card.name} needs one ({spec.kind})")
