"""The forward of WanTransformer3DModel with its tokens dealt out to ranks (cards/ulysses.py).

Only self-attention needs what other ranks have. Tokens attend to the text where they are.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

from diffusers.models.transformers.transformer_wan import WanAttnProcessor
from torch import Tensor

from cards.forward import Forward
from cards.ulysses import Ranks, Stretch, Turns, parts
from cards.wan.attention import Rotary, attended, projected, put_out
from cards.wan.forward import WanForward


def deal(transformer: Any, ranks: Ranks) -> None:
    """From now on its forward is shared by these ranks, but for latents of too few tokens."""
    whole = transformer.forward

    def forward(*, return_dict: bool, **rows: Tensor) -> tuple[Tensor]:
        stretch = _stretch(transformer, rows["hidden_states"])
        if not parts(stretch.tokens, ranks.degree):
            made: tuple[Tensor] = whole(**rows, return_dict=return_dict)
            return made
        with ranks.take_turns(stretch) as turns:
            output = DealtForward(Forward(transformer, rows), turns).whole()
        return (output,)

    transformer.forward = forward


def _stretch(transformer: Any, latent_BCFHW: Tensor) -> Stretch:
    config = transformer.config
    batch, _, *sides = latent_BCFHW.shape
    tokens = prod(side // step for side, step in zip(sides, config.patch_size, strict=True))
    heads, width = config.num_attention_heads, config.attention_head_dim
    return Stretch(batch, tokens, heads, width, len(transformer.blocks), latent_BCFHW.dtype, latent_BCFHW.device)


class DealtForward(WanForward):
    """This rank's part of it, and the whole output."""

    def __init__(self, forward: Forward, turns: Turns) -> None:
        super().__init__(forward)
        self._turns = turns

    def whole(self) -> Tensor:
        turns = self._turns
        with _attending(self._transformer.blocks, turns):
            hidden_BlD = turns.mine(self.enter())
            cosines, sines = self._rotary
            self._rotary = turns.mine(cosines), turns.mine(sines)
            return self.leave(turns.whole(self.tail(self.head(hidden_BlD))))


class UlyssesProcessor(WanAttnProcessor):  # type: ignore[misc]
    """Self-attention of a rank's tokens to all tokens."""

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self._turns = turns

    def __call__(self, attn: Any, hidden_states: Tensor, text: None, mask: None, rotary_emb: Rotary) -> Tensor:
        query, key, value = self._turns.to_heads(*projected(attn, hidden_states, rotary_emb))
        return put_out(attn, self._turns.to_tokens(attended(attn, query, key, value)))


@contextmanager
def _attending(blocks: Any, turns: Turns) -> Iterator[None]:
    before = [block.attn1.processor for block in blocks]
    processor = UlyssesProcessor(turns)
    try:
        for block in blocks:
            block.attn1.processor = processor
        yield
    finally:
        for block, one in zip(blocks, before, strict=True):
            block.attn1.processor = one
