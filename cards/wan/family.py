"""The Wan family: a card, loops, modules and step bodies for one checkpoint directory."""

from collections.abc import Mapping

from cards.checkpoint import Checkpoint, digest
from cards.family import Components, Family, Notice, StepBody
from cards.loop import Loop
from cards.model import Model
from cards.modules import Modules
from cards.request import ResolvedRequest
from cards.solvers import SOLVERS
from cards.wan.card import solver_of, text_to_video
from cards.wan.loops import loops
from cards.wan_causal.family import WanCausal

LOOPS = ("bidirectional", "causal")


class Wan:
    def __init__(self, model: Model, checkpoint: Checkpoint) -> None:
        options = model.choose(loop=LOOPS, solver=(solver_of(checkpoint), *SOLVERS))
        precision = model.precision or checkpoint.precision
        self.card = text_to_video(model.name, checkpoint, precision, options["solver"])
        self.loops: Mapping[str, Loop] = loops(self.card, options["solver"])
        self._model = model
        self._checkpoint = checkpoint
        self._precision = precision

    def weights_digest(self) -> str:
        return digest(self._checkpoint.stamps(self._model.files))

    def notices(self, request: ResolvedRequest) -> tuple[Notice, ...]:
        return ()

    def load(self, device: str) -> Components:
        return Modules(self._checkpoint, self._precision, device)

    def bodies(self) -> Mapping[str, StepBody]:
        from cards.wan import steps

        return steps.BODIES


def open(model: Model, checkpoint: Checkpoint) -> Family:
    """Raises BadCheckpoint, InvalidCard. Of what a causal student is, its files say nothing: the option `loop` does."""
    if model.options.get("loop") == "causal":
        return WanCausal(model, checkpoint)
    return Wan(model, checkpoint)
