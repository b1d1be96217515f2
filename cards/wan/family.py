"""The Wan family: a card, loops, modules and step bodies for one checkpoint directory."""

from collections.abc import Mapping

from cards.card import Precision
from cards.checkpoint import Checkpoint
from cards.family import Components, Notice, StepBody
from cards.modules import Modules
from cards.request import ResolvedRequest
from cards.wan.card import solver_of, text_to_video
from cards.wan.loops import loops


class Wan:
    def __init__(self, name: str, checkpoint: Checkpoint, precision: Precision) -> None:
        self.card = text_to_video(name, checkpoint, precision)
        self.loops = loops(self.card, solver_of(checkpoint))
        self._checkpoint = checkpoint
        self._precision = precision

    def weights_digest(self) -> str:
        return self._checkpoint.digest

    def notices(self, request: ResolvedRequest) -> tuple[Notice, ...]:
        return ()

    def load(self, device: str) -> Components:
        return Modules(self._checkpoint, self._precision, device)

    def bodies(self) -> Mapping[str, StepBody]:
        from cards.wan import steps

        return steps.BODIES
