"""The Flux 2 klein family: the base model, or the one that is distilled to few steps and has no guidance."""

from cards.card import Preset, Range
from cards.checkpoint import Checkpoint
from cards.model import Model
from cards.picture import Picture, TextToImage

PRESETS = (Preset(1024, 1024, 1.0), Preset(1360, 768, 1.0), Preset(768, 1360, 1.0))
"""The flow shift follows from the number of tokens and steps, not from a preset."""


class Flux2(TextToImage):
    steps = "cards.flux2.steps"

    def __init__(self, model: Model, checkpoint: Checkpoint) -> None:
        distilled = bool(checkpoint.settings.get("is_distilled", False))
        picture = Picture(
            family="flux2",
            version="klein",
            semantics=("flux2.encode_text/1", "flux2.euler.cfg/1", "flux2.decode_vae/1"),
            solver="euler",
            method="step distillation of flow matching" if distilled else "flow_matching",
            guided=not distilled,
            steps=Range(1, 1000, 4 if distilled else 50),
            guidance=Range(1, 1, 1) if distilled else Range(1, 20, 4),
            multiple=pixels_per_token(checkpoint),
            most_pixels=1 << 22,
            presets=PRESETS,
        )
        super().__init__(model, checkpoint, picture)


def pixels_per_token(checkpoint: Checkpoint) -> int:
    """In each direction: a token is two latents wide (diffusers' Flux2KleinPipeline)."""
    checkpoint.require("vae")
    blocks: list[int] = checkpoint.parts["vae"].config().get("block_out_channels", [128, 256, 512, 512])
    return 1 << len(blocks)


def open(model: Model, checkpoint: Checkpoint) -> Flux2:
    """Raises BadCheckpoint, InvalidCard."""
    return Flux2(model, checkpoint)
