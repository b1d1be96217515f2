"""The Flux 2 family: a card, loops, modules and step bodies for one checkpoint directory."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cards.checkpoint import Checkpoint, digest
from cards.family import Components, Notice, StepBody
from cards.flux2.card import conditions_of, is_distilled, text_to_image
from cards.flux2.loops import loops
from cards.model import Model
from cards.modules import Modules
from cards.request import ResolvedRequest

if TYPE_CHECKING:
    import torch


class Flux2:
    def __init__(self, model: Model, checkpoint: Checkpoint) -> None:
        model.choose()
        self._model = model
        self._checkpoint = checkpoint
        self._precision = model.precision or checkpoint.precision
        self.card = text_to_image(model.name, checkpoint, self._precision)
        self.loops = loops(self.card, conditions_of(checkpoint))

    def weights_digest(self) -> str:
        return digest(self._checkpoint.stamps(self._model.files))

    def notices(self, request: ResolvedRequest) -> tuple[Notice, ...]:
        if request.negative_prompt and is_distilled(self._checkpoint):
            return (
                Notice("ignored", "negative_prompt", f"{self.card.name} is distilled, without guidance: it ignores it"),
            )
        return ()

    def load(self, device: str) -> Components:
        return Modules(self._checkpoint, self._precision, device)

    def bodies(self) -> Mapping[str, StepBody]:
        from cards.flux2 import steps

        return steps.BODIES

    def reference(self, request: ResolvedRequest, given: "Mapping[str, torch.Tensor]") -> "Mapping[str, torch.Tensor]":
        from cards.flux2 import reference

        return reference.outputs(self._checkpoint, self._precision, self.card, request)


def open(model: Model, checkpoint: Checkpoint) -> Flux2:
    """Raises BadCheckpoint, InvalidCard."""
    return Flux2(model, checkpoint)
