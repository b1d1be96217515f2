"""How large the tensors of Flux 2 are and what its steps cost, from a checkpoint's configs and headers. No torch."""

from cards import canvas
from cards.card import ModelCard, Precision
from cards.checkpoint import Checkpoint, Part
from cards.layers import Layers, attention, attention_of_language_model, has, language_model, numbered, width_of
from cards.request import ResolvedRequest
from cards.sizes import LoopSizes, Sized, Work, always

TEXT_TOKENS = 512
"""What Flux2KleinPipeline pads every prompt to."""

COPIES, ENCODER_COPIES, DECODER_COPIES = 2.2, 1.0, 1.5
"""Of the widest layer of each."""

HIDDEN_LAYERS = 3
"""Of the text encoder, whose outputs are read beside each other."""


def sizes(
    card: ModelCard, checkpoint: Checkpoint, precision: Precision, request: ResolvedRequest
) -> dict[str, LoopSizes]:
    width, height, _ = canvas.pixels(request, card.output)
    assert card.output.canvas
    side, conditions = card.output.canvas.multiple, card.program.nodes[0].outputs
    return {
        "encode_text": _encode(checkpoint.parts["text_encoder"], precision, conditions),
        "denoise": _denoise(checkpoint.parts["transformer"], precision, request, (height // side) * (width // side)),
        "decode_vae": LoopSizes(
            tensors={"image": Sized((height, width, 3), "uint8")},
            work=always(_decode(checkpoint.parts["vae"], precision, 2 * height // side, 2 * width // side)),
        ),
    }


def _encode(part: Part, precision: Precision, conditions: tuple[str, ...]) -> LoopSizes:
    config = part.config()
    layers = language_model(part, TEXT_TOKENS)
    flops = layers.flops + attention_of_language_model(config, TEXT_TOKENS)
    text = Sized((1, TEXT_TOKENS, HIDDEN_LAYERS * config["hidden_size"]), precision)
    return LoopSizes(
        tensors=dict.fromkeys(conditions, text),
        work=always(Work(flops, layers.activations(ENCODER_COPIES, precision)).times(len(conditions))),
    )


def _denoise(part: Part, precision: Precision, request: ResolvedRequest, tokens: int) -> LoopSizes:
    """The tokens of text and picture attend to each other, in blocks with weights for each and then with the same."""
    config = part.config()
    width = config["num_attention_heads"] * config["attention_head_dim"]
    layers = Layers(
        part,
        {
            r"time_guidance_embed|.*_modulation|norm_out": 1,
            r"context_embedder|transformer_blocks\.\d+\.(attn\.(add_[qkv]_proj|to_add_out)|ff_context)": TEXT_TOKENS,
            r"x_embedder|transformer_blocks|proj_out": tokens,
            r"single_transformer_blocks": TEXT_TOKENS + tokens,
        },
    )
    blocks = config["num_layers"] + config["num_single_layers"]
    attended = blocks * attention(TEXT_TOKENS + tokens, TEXT_TOKENS + tokens, width)
    each = Work(layers.flops + attended, layers.activations(COPIES, precision))
    return LoopSizes(
        tensors={"latent": Sized((1, tokens, config["in_channels"]), precision)},
        work=always(each.times(1 if request.guidance == 1.0 else 2)),
    )


def _decode(part: Part, precision: Precision, height: int, width: int) -> Work:
    """Of a latent. In the middle all of its places attend to each other."""
    shapes, places = part.shapes(), height * width
    rows = {r"encoder|quant_conv": 0, r"post_quant_conv|decoder\.(conv_in|mid_block)": places}
    middle = attention(places, places, width_of(part, "decoder.conv_in.weight"))
    for block in numbered(shapes, r"decoder\.up_blocks\."):
        here = rf"decoder\.up_blocks\.{block}\."
        rows[rf"{here}resnets"] = places
        if has(shapes, rf"{here}upsamplers"):
            places *= 4
            rows[rf"{here}upsamplers"] = places
    layers = Layers(part, rows | {r"decoder\.conv_out": places})
    attended = middle if has(shapes, r"decoder\.mid_block\.attentions") else 0
    return Work(layers.flops + attended, layers.activations(DECODER_COPIES, precision))
