"""The Flux 2 family: a card, loops, modules and step bodies for one checkpoint directory."""

from cards.checkpoint import Checkpoint
from cards.family import Notice, no_guidance
from cards.flux2.card import conditions_of, is_distilled, text_to_image
from cards.flux2.loops import loops
from cards.model import Model
from cards.request import ResolvedRequest
from cards.single import OneCheckpoint


class Flux2(OneCheckpoint):
    steps = "cards.flux2.steps"

    def __init__(self, model: Model, checkpoint: Checkpoint) -> None:
        super().__init__(model, checkpoint)
        model.choose()
        self.card = text_to_image(model.name, checkpoint, self._precision)
        self.loops = loops(self.card, conditions_of(checkpoint))

    def notices(self, request: ResolvedRequest) -> tuple[Notice, ...]:
        if not is_distilled(self._checkpoint):
            return ()
        return no_guidance(request, "ignored", f"{self.card.name} is distilled, without guidance: it ignores it")


def open(model: Model, checkpoint: Checkpoint) -> Flux2:
    """Raises BadCheckpoint, InvalidCard."""
    return Flux2(model, checkpoint)
