"""The Wan family: a card, loops, modules and step bodies for one checkpoint directory."""

from collections.abc import Mapping

from cards.checkpoint import Checkpoint, digest
from cards.extensions.loops import CHOICES, bodies, notices
from cards.family import Components, Notice, StepBody
from cards.model import Model
from cards.modules import Modules
from cards.request import ResolvedRequest
from cards.solvers import SOLVERS
from cards.wan.card import solver_of, text_to_video
from cards.wan.loops import loops


class Wan:
    def __init__(self, model: Model, checkpoint: Checkpoint) -> None:
        options = model.choose(solver=(solver_of(checkpoint), *SOLVERS), interceptor=CHOICES)
        precision = model.precision or checkpoint.precision
        self.card = text_to_video(model.name, checkpoint, precision, options["solver"], options["interceptor"])
        self.loops = loops(self.card, options["solver"])
        self._model = model
        self._checkpoint = checkpoint
        self._precision = precision

    def weights_digest(self) -> str:
        return digest(self._checkpoint.stamps(self._model.files))

    def notices(self, request: ResolvedRequest) -> tuple[Notice, ...]:
        return notices(request)

    def load(self, device: str) -> Components:
        return Modules(self._checkpoint, self._precision, device)

    def bodies(self) -> Mapping[str, StepBody]:
        from cards.wan import steps

        more = bodies("denoise", self.card.loops["denoise"], steps.denoise, steps.advance)
        return {**steps.BODIES, **more}


def open(model: Model, checkpoint: Checkpoint) -> Wan:
    """Raises BadCheckpoint."""
    return Wan(model, checkpoint)
