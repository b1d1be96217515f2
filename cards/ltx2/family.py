"""The LTX-2 family: a card, loops, modules and step bodies for one checkpoint directory."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cards.checkpoint import Checkpoint, digest
from cards.family import Components, Notice, StepBody
from cards.ltx2.card import RECIPES, UPSAMPLER, text_to_video, version_of
from cards.ltx2.loops import loops
from cards.model import Model
from cards.modules import Modules
from cards.request import ResolvedRequest

if TYPE_CHECKING:
    import torch


class Ltx2:
    """A checkpoint with an upsampler is run in two distilled stages, unless its options say otherwise."""

    def __init__(self, model: Model, checkpoint: Checkpoint) -> None:
        recipes = RECIPES if UPSAMPLER in checkpoint.parts else RECIPES[::-1]
        self._recipe = model.choose(recipe=recipes)["recipe"]
        self._model = model
        self._checkpoint = checkpoint
        self._precision = model.precision or checkpoint.precision
        self.card = text_to_video(model.name, checkpoint, self._precision, self._recipe)
        self.loops = loops(self.card, version_of(checkpoint))

    def weights_digest(self) -> str:
        return digest(self._checkpoint.stamps(self._model.files))

    def notices(self, request: ResolvedRequest) -> tuple[Notice, ...]:
        if not request.negative_prompt or self._recipe != "distilled":
            return ()
        return (Notice("unused", "negative_prompt", "the distilled recipe has no use for one; it is ignored"),)

    def load(self, device: str) -> Components:
        return Modules(self._checkpoint, self._precision, device)

    def bodies(self) -> Mapping[str, StepBody]:
        from cards.ltx2 import steps

        return steps.BODIES

    def reference(self, request: ResolvedRequest, given: "Mapping[str, torch.Tensor]") -> "Mapping[str, torch.Tensor]":
        from cards.ltx2 import reference

        run = reference.distilled if self._recipe == "distilled" else reference.guided
        return run(self._checkpoint, self._precision, self.card, request)


def open(model: Model, checkpoint: Checkpoint) -> Ltx2:
    """Raises BadCheckpoint, InvalidCard."""
    return Ltx2(model, checkpoint)
