"""The Flux 2 klein family: the base model, or the one that is distilled to few steps and has no guidance."""

from collections.abc import Mapping
from pathlib import Path

from cards.card import Preset, Range
from cards.checkpoint import Checkpoint
from cards.family import Tensors
from cards.flux2.sizes import sizes
from cards.picture import Picture, TextToImage
from cards.request import ResolvedRequest
from cards.sizes import LoopSizes
from cards.tokens import TokenLimit, in_chat

PRESETS = (Preset(1024, 1024, 1.0), Preset(1360, 768, 1.0), Preset(768, 1360, 1.0))
"""The flow shift follows from the number of tokens and steps, not from a preset."""


class Flux2(TextToImage):
    steps = "cards.flux2.steps"

    def picture(self, checkpoint: Checkpoint) -> Picture:
        distilled = bool(checkpoint.settings.get("is_distilled", False))
        blocks: list[int] = checkpoint.parts["vae"].config().get("block_out_channels", [128, 256, 512, 512])
        return Picture(
            family="flux2",
            version="klein",
            semantics=("flux2.encode_text/1", "flux2.euler.cfg/1", "flux2.decode_vae/1"),
            solver="euler",
            method="step distillation of flow matching" if distilled else "flow_matching",
            guided=not distilled,
            steps=Range(1, 1000, 4 if distilled else 50),
            guidance=Range(1, 1, 1) if distilled else Range(1, 20, 4),
            multiple=1 << len(blocks),  # a token is two latents wide; each block but the last halves the picture
            most_pixels=1 << 22,
            most_aspect=8,  # of the pictures that diffusers' Flux2ImageProcessor takes in
            presets=PRESETS,
        )

    def tokens(self, tokenizer: Path) -> TokenLimit:
        return TokenLimit(tokenizer, 512, in_chat(tokenizer, enable_thinking=False))

    def sizes(self, request: ResolvedRequest) -> Mapping[str, LoopSizes]:
        return sizes(self.card, self._checkpoint, self._precision, request)

    def reference(self, request: ResolvedRequest, given: Tensors) -> Tensors:
        from cards.flux2 import reference

        return reference.outputs(self._checkpoint, self._precision, self.card, request)


open = Flux2
