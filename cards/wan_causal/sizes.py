"""How large the tensors of a causal rollout are and what its steps cost. No torch."""

from msgspec.structs import replace

from cards import canvas
from cards.card import ModelCard, Precision
from cards.checkpoint import Checkpoint
from cards.request import ResolvedRequest
from cards.sizes import LoopSizes, Sized, Work
from cards.wan import vae_sizes
from cards.wan.card import scale_of
from cards.wan.sizes import cache, encode, forward, latent_of, tokens_of
from cards.wan_causal.window import CHUNK, visible
from cards.wire import WorkPlan

STACKED_COPIES = 2
"""Of a chunk's keys and values beside what is kept of them: of each layer, and then of each layer as one tensor."""


def sizes(
    card: ModelCard, checkpoint: Checkpoint, precision: Precision, request: ResolvedRequest
) -> dict[str, LoopSizes]:
    return {
        "encode_text": encode(card, checkpoint, precision),
        "rollout": _rollout(card, checkpoint, precision, request),
    }


def _rollout(card: ModelCard, checkpoint: Checkpoint, precision: Precision, request: ResolvedRequest) -> LoopSizes:
    """A chunk attends to itself and to the frames that its window shows it, whose keys and values it reads.

    When a forward ends it has those of the chunk of all its layers, and of one layer those of the past beside them.
    """
    transformer, vae = checkpoint.parts["transformer"], checkpoint.parts["vae"]
    config = transformer.config()
    batch, channels, _, *grid = latent_of(card, checkpoint, request)
    latent = (batch, channels, CHUNK, *grid)
    tokens = tokens_of(config, latent)
    width, height, _ = canvas.pixels(request, card.output)
    _, time = scale_of(vae.config())
    layers, heads, width_of_head = (
        config[name] for name in ("num_layers", "num_attention_heads", "attention_head_dim")
    )
    kv = Sized((layers, 2, batch, tokens, heads, width_of_head), precision)

    def work(plan: WorkPlan) -> Work:
        chunk, window, sink = (int(plan.scalars[name]) for name in ("chunk", "window", "sink"))
        if plan.kind == "decode":
            return vae_sizes.step(vae, latent, CHUNK, precision, first=not chunk)
        past = len(visible(chunk, window, sink)) * tokens // CHUNK
        each = forward(transformer, precision, tokens, past=past)
        joined = (past + tokens) * kv.nbytes // (layers * tokens) if past else 0
        held = each.activations + joined
        if plan.kind == "context":
            return replace(each, activations=max(held, STACKED_COPIES * kv.nbytes))
        return replace(each, activations=held + kv.nbytes)

    return LoopSizes(
        tensors={
            "x": Sized(latent, precision),
            "latent": Sized(latent, precision),
            "kv": kv,
            "frames/0": Sized(((CHUNK - 1) * time + 1, height, width, 3), "uint8"),
            "frames": Sized((CHUNK * time, height, width, 3), "uint8"),
            "cache": cache(vae, latent, precision),
        },
        work=work,
    )
