"""What comes with a request beside its words: tensors by the names of the card's inputs. No torch."""

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

MOST_PIXELS = 1 << 26


class Given(Struct, frozen=True):
    """`data` is the blob that `ref` names; empty if it is stored already."""

    ref: TensorRef
    data: bytes = b""


def picture(field: str, data: bytes) -> Given:
    """An image file as uint8 (H, W, 3). Raises InvalidRequest."""
    import numpy as np
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.width * image.height > MOST_PIXELS:
                raise InvalidRequest(field, f"has {image.width}x{image.height} pixels; up to {MOST_PIXELS} are taken")
            pixels: NDArray[np.uint8] = np.asarray(image.convert("RGB"))
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        raise InvalidRequest(field, "is no image that can be read; send a PNG, JPEG or WebP file") from error
    return Given(*codec.encode_array(pixels))


def check_inputs(given: Collection[str], card: ModelCard) -> None:
    """Raises InvalidRequest, which names the input that is missing or that the card does not take."""
    inputs = {} if card.inputs is UNSET else card.inputs
    for name in given:
        if name not in inputs:
            raise InvalidRequest(name, f"{card.name} takes no such input; it takes {', '.join(inputs) or 'none'}")
    for name, spec in inputs.items():
        if spec.required and name not in given:
            raise InvalidRequest(name, f"is missing: {card.name} needs one ({spec.kind})")
