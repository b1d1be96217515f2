"""How large Wan's tensors are and what its steps cost, from the configs of a checkpoint. No torch.

Work is that of the matrix products and convolutions; a multiplication and an addition count as two.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from cards import canvas
from cards.card import ModelCard, Precision
from cards.checkpoint import Checkpoint
from cards.request import ResolvedRequest
from cards.sizes import WIDTH, LoopSizes, Sized
from cards.wan.card import TEXT_TOKENS, scale_of

Config = Mapping[str, Any]

CACHED_FRAMES = 2
"""Of the input of each causal convolution (diffusers' CACHE_T)."""


def sizes(
    card: ModelCard, checkpoint: Checkpoint, precision: Precision, solver: str, request: ResolvedRequest
) -> dict[str, LoopSizes]:
    encoder, transformer, vae = (checkpoint.parts[name].config() for name in ("text_encoder", "transformer", "vae"))
    width, height, frames = canvas.pixels(request, card.output)
    space, time = scale_of(vae)
    latent = (1, int(transformer["in_channels"]), (frames - 1) // time + 1, height // space, width // space)
    return {
        "encode_text": _encode(encoder, precision),
        "denoise": _denoise(transformer, latent, precision, solver, guided=request.guidance != 1.0),
        "decode_vae": _decode(vae, (height // space, width // space), (time, height, width, 3), precision),
    }


def _encode(encoder: Config, precision: Precision) -> LoopSizes:
    """Two prompts through an encoder with gated feed-forward layers, each at full length (they are padded)."""
    width, inner = encoder["d_model"], encoder["num_heads"] * encoder["d_kv"]
    layer = 2 * TEXT_TOKENS * (4 * width * inner + 3 * width * encoder["d_ff"]) + 4 * TEXT_TOKENS**2 * inner
    text = Sized((1, TEXT_TOKENS, width), precision)
    return LoopSizes(
        tensors={"text": text, "negative": text},
        flops=2 * encoder["num_layers"] * layer,
        activations=TEXT_TOKENS * (8 * width + 2 * encoder["d_ff"]) * WIDTH[precision],
    )


def _denoise(
    transformer: Config, latent: tuple[int, ...], precision: Precision, solver: str, *, guided: bool
) -> LoopSizes:
    """Attention over all tokens of the clip: beyond the projections its cost grows with their square."""
    patch = transformer["patch_size"]
    tokens = (latent[2] // patch[0]) * (latent[3] // patch[1]) * (latent[4] // patch[2])
    width = transformer["num_attention_heads"] * transformer["attention_head_dim"]
    feed = transformer["ffn_dim"]
    to_itself = 8 * tokens * width**2 + 4 * tokens**2 * width
    to_text = 4 * (tokens + TEXT_TOKENS) * width**2 + 4 * tokens * TEXT_TOKENS * width
    layer = to_itself + to_text + 4 * tokens * width * feed
    state = Sized(latent, precision if solver == "euler" else "float32")  # diffusers' Euler gives what it is given
    return LoopSizes(
        tensors={"velocity": Sized(latent, precision), "latent": state, "estimate": state, "sample": state},
        flops=(2 if guided else 1) * transformer["num_layers"] * layer,
        activations=tokens * (8 * width + 2 * feed) * WIDTH[precision],
    )


def _decode(vae: Config, latent: tuple[int, int], clip: tuple[int, ...], precision: Precision) -> LoopSizes:
    convolutions = list(_convolutions(vae, *latent))
    largest = max(max(one.inputs, one.outputs) * one.places for one in convolutions)
    cache = sum(one.inputs * CACHED_FRAMES * one.height * one.width for one in convolutions if one.cached)
    return LoopSizes(
        tensors={
            "frames/0": Sized((1, *clip[1:]), "uint8"),
            "frames": Sized(clip, "uint8"),
            "cache": Sized((cache * WIDTH[precision],), "uint8"),  # from the second frame on, as packed
        },
        flops=sum(2 * one.taps * one.inputs * one.outputs * one.places for one in convolutions),
        activations=3 * largest * WIDTH["float32"],  # it upsamples in float32
    )


class _Convolution(Struct, frozen=True):
    inputs: int
    outputs: int
    taps: int
    frames: int
    height: int
    width: int
    cached: bool = True

    @property
    def places(self) -> int:
        return self.frames * self.height * self.width


def _convolutions(vae: Config, height: int, width: int) -> Iterator[_Convolution]:
    """Those of AutoencoderKLWan's decoder, for one latent frame that is not the first."""
    base, residual = vae.get("decoder_base_dim") or vae["base_dim"], bool(vae.get("is_residual"))
    dims = [base * factor for factor in (vae["dim_mult"][-1], *reversed(vae["dim_mult"]))]
    in_time = [*reversed(vae["temperal_downsample"]), False]
    frames = 1
    yield _Convolution(vae["z_dim"], dims[0], 27, frames, height, width)
    for _ in range(4):  # two residual blocks in the middle
        yield _Convolution(dims[0], dims[0], 27, frames, height, width)
    for block, (inputs, outputs) in enumerate(itertools.pairwise(dims)):
        inputs = inputs if residual or block == 0 else inputs // 2
        for _ in range(vae["num_res_blocks"] + 1):
            yield _Convolution(inputs, outputs, 27, frames, height, width)
            yield _Convolution(outputs, outputs, 27, frames, height, width)
            inputs = outputs
        if block == len(dims) - 2:
            break
        if in_time[block]:
            yield _Convolution(outputs, 2 * outputs, 3, frames, height, width)
            frames *= 2
        height, width = 2 * height, 2 * width
        yield _Convolution(outputs, outputs if residual else outputs // 2, 9, frames, height, width, cached=False)
    yield _Convolution(dims[-1], vae.get("out_channels", 3), 27, frames, height, width)
