"""How large Wan's tensors are and what its steps cost, from a checkpoint's configs and headers. No torch."""

from collections.abc import Mapping
from typing import Any

from cards import canvas
from cards.card import ModelCard, Precision
from cards.checkpoint import Checkpoint, Part
from cards.layers import Layers, attention
from cards.request import ResolvedRequest
from cards.sizes import LoopSizes, Sized, Work, always
from cards.wan import vae_sizes
from cards.wan.card import CLIP, TEXT_TOKENS, scale_of
from cards.wan.dmd import SEMANTICS as DMD
from cards.wire import WorkPlan

Config = Mapping[str, Any]

GIVEN_FRAMES = 4
"""Channels of a condition that say which frames are given."""

COPIES, ENCODER_COPIES = 2.35, 3.0
"""Of the widest layer of the transformer, and of the text encoder."""


def sizes(
    card: ModelCard, checkpoint: Checkpoint, precision: Precision, solver: str, request: ResolvedRequest
) -> dict[str, LoopSizes]:
    made = {
        "encode_text": encode(card, checkpoint, precision),
        "denoise": _denoise(card, checkpoint, precision, solver, request),
        "decode_vae": _decode(card, checkpoint, precision, request),
    }
    if "encode_image" in card.loops:
        made["encode_image"] = _encode_image(card, checkpoint, precision, request)
    return made


def latent_of(card: ModelCard, checkpoint: Checkpoint, request: ResolvedRequest) -> tuple[int, ...]:
    """(B, C, F, H, W)."""
    vae = checkpoint.parts["vae"].config()
    width, height, frames = canvas.pixels(request, card.output)
    space, time = scale_of(vae)
    return (1, int(vae["z_dim"]), (frames - 1) // time + 1, height // space, width // space)


def encode(card: ModelCard, checkpoint: Checkpoint, precision: Precision) -> LoopSizes:
    """The prompts, one by one, each at full length: they are padded."""
    part = checkpoint.parts["text_encoder"]
    config = part.config()
    layers = Layers(
        part,
        {r"shared|encoder\.embed_tokens|.*relative_attention_bias": 0, r"encoder\.block\.": TEXT_TOKENS},
    )
    attended = config["num_layers"] * attention(TEXT_TOKENS, TEXT_TOKENS, config["num_heads"] * config["d_kv"])
    each = Work(layers.flops + attended, layers.activations(ENCODER_COPIES, precision))
    prompts = next(node.outputs for node in card.program.nodes if node.loop == "encode_text")
    text = Sized((1, TEXT_TOKENS, config["d_model"]), precision)
    return LoopSizes(tensors=dict.fromkeys(prompts, text), work=always(each.times(len(prompts))))


def tokens_of(transformer: Config, latent: tuple[int, ...]) -> int:
    time, height, width = transformer["patch_size"]
    tokens: int = (latent[2] // time) * (latent[3] // height) * (latent[4] // width)
    return tokens


def forward(part: Part, precision: Precision, tokens: int, *, past: int = 0, seen: int = 0) -> Work:
    """Of one sample: its tokens attend to `past` ones too, to the text, and to as many of a picture as are `seen`."""
    config = part.config()
    layers = Layers(
        part,
        {
            r"condition_embedder\.(time_embedder|time_proj)": 1,
            r"condition_embedder\.text_embedder|blocks\.\d+\.attn2\.to_[kv]": TEXT_TOKENS,
            r"condition_embedder\.image_embedder|blocks\.\d+\.attn2\.add_[kv]_proj": seen,
            r"patch_embedding|blocks\.|proj_out": tokens,
        },
    )
    width = config["num_attention_heads"] * config["attention_head_dim"]
    attended = config["num_layers"] * attention(tokens, past + tokens + TEXT_TOKENS + seen, width)
    return Work(layers.flops + attended, layers.activations(COPIES, precision))


def seen_by_clip(checkpoint: Checkpoint) -> int:
    """Tokens of the picture, and one of all of it."""
    config = checkpoint.parts[CLIP[0]].config()
    return int((config["image_size"] // config["patch_size"]) ** 2 + 1)


def _denoise(
    card: ModelCard, checkpoint: Checkpoint, precision: Precision, solver: str, request: ResolvedRequest
) -> LoopSizes:
    """Attention over all tokens of the clip: beyond the projections its cost grows with their square."""
    latent, part = latent_of(card, checkpoint, request), checkpoint.parts["transformer"]
    distilled = card.loops["denoise"].semantics == DMD
    kept = solver == "euler" and not distilled  # diffusers' Euler gives what it is given
    state = Sized(latent, precision if kept else "float32")
    batched = card.loops["denoise"].semantics.endswith("_batched/1")
    seen = seen_by_clip(checkpoint) if CLIP[0] in card.components else 0
    each = forward(part, precision, tokens_of(part.config(), latent), seen=seen)
    both = each.in_a_batch_of(2) if batched else each.times(2)
    return LoopSizes(
        tensors={"velocity": Sized(latent, precision), "latent": state, "estimate": state, "sample": state},
        work=always(each if request.guidance == 1.0 else both),
    )


def _encode_image(card: ModelCard, checkpoint: Checkpoint, precision: Precision, request: ResolvedRequest) -> LoopSizes:
    latent = latent_of(card, checkpoint, request)
    batch, channels, *grid = latent
    tensors = {"condition": Sized((batch, GIVEN_FRAMES + channels, *grid), "float32")}
    work = vae_sizes.encoding(checkpoint.parts["vae"], latent, precision)
    if CLIP[0] in card.components:
        part, tokens = checkpoint.parts[CLIP[0]], seen_by_clip(checkpoint)
        width, count = part.config()["hidden_size"], part.config()["num_hidden_layers"]
        tensors["image_tokens"] = Sized((1, tokens, width), precision)
        layers = Layers(part, {r".*position_embedding": 0, r".*patch_embedding": tokens - 1, r".*layers\.": tokens})
        work += Work(layers.flops + count * attention(tokens, tokens, width))
    return LoopSizes(tensors=tensors, work=always(work))


def _decode(card: ModelCard, checkpoint: Checkpoint, precision: Precision, request: ResolvedRequest) -> LoopSizes:
    """A latent frame a step."""
    part, latent = checkpoint.parts["vae"], latent_of(card, checkpoint, request)
    width, height, _ = canvas.pixels(request, card.output)
    _, time = scale_of(part.config())
    first, following = (vae_sizes.step(part, latent, 1, precision, first=first) for first in (True, False))

    def work(plan: WorkPlan) -> Work:
        return following if plan.step else first

    return LoopSizes(
        tensors={
            "frames/0": Sized((1, height, width, 3), "uint8"),
            "frames": Sized((time, height, width, 3), "uint8"),
            "cache": cache(part, latent, precision),
        },
        work=work,
    )


def cache(part: Part, latent: tuple[int, ...], precision: Precision) -> Sized:
    """What is left for the next frame, packed: of the first frame it is less, and its headers are beside it."""
    height, width = latent[-2:]
    return Sized((vae_sizes.cache_bytes(part, height, width, precision),), "uint8")
