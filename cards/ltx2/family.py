"""The LTX-2 family: a card, loops, modules and step bodies for one checkpoint directory."""

from collections.abc import Mapping

from cards import canvas
from cards.checkpoint import Checkpoint
from cards.family import Notice, Tensors, no_guidance
from cards.ltx2.card import RECIPES, UPSAMPLER, most_side, text_to_video, text_tokens, version_of
from cards.ltx2.loops import loops
from cards.ltx2.sizes import sizes
from cards.model import Model
from cards.parallel import branches_only
from cards.request import ResolvedRequest
from cards.single import OneCheckpoint
from cards.sizes import LoopSizes
from cards.tokens import TokenLimit


class Ltx2(OneCheckpoint):
    """A checkpoint with an upsampler is run in two distilled stages, unless its options say otherwise."""

    steps = "cards.ltx2.steps"

    def __init__(self, model: Model, checkpoint: Checkpoint) -> None:
        super().__init__(model, checkpoint)
        recipes = RECIPES if UPSAMPLER in checkpoint.parts else RECIPES[::-1]
        self._recipe = model.choose(recipe=recipes)["recipe"]
        self.card = text_to_video(model.name, checkpoint, self._precision, self._recipe)
        self.loops = loops(self.card, version_of(checkpoint))
        tokenizer = checkpoint.parts["tokenizer"]
        self._tokens = TokenLimit(tokenizer.folder, text_tokens(tokenizer.config()), str.strip)
        self._most_side = most_side(checkpoint.parts["transformer"].config())

    def notices(self, request: ResolvedRequest) -> tuple[Notice, ...]:
        canvas.check_sides(request, self.card.output, self._most_side)
        self._tokens.check("prompt", request.prompt)
        if self._recipe != "distilled":
            self._tokens.check("negative_prompt", request.negative_prompt)
            return ()
        return no_guidance(request, "the distilled recipe has no use for one; it is ignored")

    def unshared(self, axis: str, degree: int) -> str:
        return branches_only(axis, "the distilled recipe has one branch" if self._recipe == "distilled" else "")

    def sizes(self, request: ResolvedRequest) -> Mapping[str, LoopSizes]:
        return sizes(self.card, self._checkpoint, self._precision, request)

    def reference(self, request: ResolvedRequest, given: Tensors) -> Tensors:
        from cards.ltx2 import reference

        run = reference.distilled if self._recipe == "distilled" else reference.guided
        return run(self._checkpoint, self._precision, self.card, request)


def open(model: Model, checkpoint: Checkpoint) -> Ltx2:
    """Raises BadCheckpoint, InvalidCard."""
    return Ltx2(model, checkpoint)
