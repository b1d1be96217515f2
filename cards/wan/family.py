"""The Wan family: a card, loops, modules and step bodies for one checkpoint directory."""

from collections.abc import Mapping
from functools import partial

from cards.checkpoint import Checkpoint, digest
from cards.family import Components, Notice, StepBody
from cards.invariant import row_by_row
from cards.model import Model
from cards.modules import Modules
from cards.request import ResolvedRequest
from cards.solvers import SOLVERS
from cards.wan import dmd
from cards.wan.card import BY_ROW, POLICIES, solver_of, text_to_video
from cards.wan.loops import loops


class Wan:
    def __init__(self, model: Model, checkpoint: Checkpoint) -> None:
        self._batched = model.options.get("cfg") == "batched"
        self._distilled = dmd.asked(model, checkpoint)
        precision = model.precision or checkpoint.precision
        if self._distilled:
            model.choose(recipe=("dmd",))
            self.card = dmd.student(text_to_video(model.name, checkpoint, precision, "euler"))
            self.loops = loops(self.card, "euler") | {loop.semantics: loop for loop in dmd.loops(self.card)}
        else:
            options = model.choose(solver=(solver_of(checkpoint), *SOLVERS), recipe=("base", "dmd"), cfg=(*POLICIES,))
            chosen = options["solver"], POLICIES[options["cfg"]]
            self.card = text_to_video(model.name, checkpoint, precision, *chosen)
            self.loops = loops(self.card, *chosen)
        self._model = model
        self._checkpoint = checkpoint
        self._precision = precision

    def weights_digest(self) -> str:
        return digest(self._checkpoint.stamps(self._model.files))

    def notices(self, request: ResolvedRequest) -> tuple[Notice, ...]:
        return dmd.notices(request) if self._distilled else ()

    def modules(self) -> Mapping[str, tuple[int, ...]]:
        """Those of the transformer, which LoRAs may change, with the shapes of their weights."""
        shapes = self._checkpoint.parts["transformer"].shapes()
        return {key.removesuffix(".weight"): shape for key, shape in shapes.items() if key.endswith(".weight")}

    def load(self, device: str) -> Components:
        by_row = partial(row_by_row, names=BY_ROW)
        return Modules(self._checkpoint, self._precision, device, {"transformer": by_row} if self._batched else {})

    def bodies(self) -> Mapping[str, StepBody]:
        from cards.wan import steps

        return steps.BODIES


def open(model: Model, checkpoint: Checkpoint) -> Wan:
    """Raises BadCheckpoint."""
    return Wan(model, checkpoint)
