"""What Wan's VAE takes to decode some latent frames and to encode a clip, and how large the cache between decodings is.

Which blocks change the resolution, and which of them in time too, the names of their weights say. No torch.
"""

import re
from collections.abc import Iterable, Iterator

from cards.card import Precision
from cards.checkpoint import Part
from cards.layers import Layers, attention, has, numbered, width_of
from cards.sizes import WIDTH, Work

CACHED_FRAMES = 2
"""Of the input of each causal convolution (diffusers' CACHE_T)."""

DECODER_COPIES, ENCODER_COPIES = 2.0, 5.4
"""Of the widest layer of each."""

Places = Iterator[tuple[str, int]]
"""By the beginning of a weight's name, how many elements each channel of what it makes has."""


def step(part: Part, latent: tuple[int, ...], frames: int, precision: Precision, *, first: bool) -> Work:
    """To decode some frames of a latent (B, C, F, H, W), `first` if the clip's first is among them.

    The whole latent is brought to the VAE's scale before. To pack the cache then takes what is packed (cards/pack.py).
    """
    height, width = latent[-2:]
    unscaled = Layers(part, {r"post_quant_conv": latent[2] * height * width, r"decoder|encoder|quant_conv": 0})
    head = decoding(part, height, width, precision, first=True) if first else Work()
    return Work(unscaled.flops) + head + decoding(part, height, width, precision, first=False).times(frames - first)


def decoding(part: Part, height: int, width: int, precision: Precision, *, first: bool) -> Work:
    """Of one latent frame to four, or of the first one to one: then no convolution makes more frames of it.

    The cache that it leaves is in memory as tensors.
    """
    rows = dict(_up(part.shapes(), height * width, in_time=not first))
    skipped = {r".*time_conv": 0} if first else {}
    layers = Layers(part, skipped | rows | {r"encoder|quant_conv|post_quant_conv": 0})
    middle = attention(height * width, height * width, _width_of_middle(part, "decoder"))
    cache = cache_bytes(part, height, width, precision)
    return Work(layers.flops + middle, cache + layers.activations(DECODER_COPIES, precision))


def encoding(part: Part, latent: tuple[int, ...], precision: Precision) -> Work:
    """Of the whole clip that a latent (B, C, F, H, W) is of: its first frame, then four at a time."""
    frames, height, width = latent[-3:]
    rows = dict(_down(part.shapes(), frames, height, width))
    layers = Layers(part, rows | {r"quant_conv": frames * height * width, r"decoder|post_quant_conv": 0})
    middle = frames * attention(height * width, height * width, _width_of_middle(part, "encoder"))
    return Work(layers.flops + middle, layers.activations(ENCODER_COPIES, precision) // frames)


def cache_bytes(part: Part, height: int, width: int, precision: Precision) -> int:
    """Of what one latent frame of this height and width leaves for the next, from the second on."""
    shapes = part.shapes()
    area = dict(_up(shapes, height * width, in_time=False))
    elements = sum(
        CACHED_FRAMES * shape[1] * next(places for begin, places in area.items() if re.match(begin, name))
        for name, shape in shapes.items()
        if name.startswith("decoder.") and len(shape) == 5 and shape[2] == 3
    )
    return elements * WIDTH[precision]


def _up(names: Iterable[str], places: int, *, in_time: bool) -> Places:
    yield r"decoder\.(conv_in|mid_block)", places
    for block in numbered(names, r"decoder\.up_blocks\."):
        here = rf"decoder\.up_blocks\.{block}\."
        yield rf"{here}resnets", places
        yield rf"{here}upsamplers\.0\.time_conv", places
        if in_time and has(names, rf"{here}upsamplers\.0\.time_conv"):
            places *= 2
        if has(names, rf"{here}upsamplers"):
            places *= 4
        yield rf"{here}upsamplers", places
    yield r"decoder\.conv_out", places


def _down(names: Iterable[str], frames: int, height: int, width: int) -> Places:
    """Backwards, from the latent to the pixels: the first frame is never one of several that become one."""
    following, area = frames - 1, height * width
    yield r"encoder\.(conv_out|mid_block)", frames * area
    for block in reversed(numbered(names, r"encoder\.down_blocks\.")):
        here = rf"encoder\.down_blocks\.{block}\."
        yield rf"{here}time_conv", following * area
        if has(names, rf"{here}time_conv"):
            following *= 2
        yield here, (following + 1) * area
        if has(names, rf"{here}resample"):
            area *= 4
    yield r"encoder\.conv_in", (following + 1) * area


def _width_of_middle(part: Part, half: str) -> int:
    """Where all places of a frame attend to each other."""
    return width_of(part, f"{half}.mid_block.attentions.0.proj.weight")
