"""The Wan family: a card, loops, modules and step bodies for one checkpoint directory."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cards.checkpoint import Checkpoint, digest
from cards.family import Components, Notice, StepBody
from cards.model import Model
from cards.modules import Modules
from cards.request import ResolvedRequest
from cards.sizes import LoopSizes
from cards.solvers import SOLVERS
from cards.tokens import TokenLimit
from cards.wan.card import TEXT_TOKENS, solver_of, video
from cards.wan.loops import loops
from cards.wan.sizes import sizes

if TYPE_CHECKING:
    import torch


class Wan:
    def __init__(self, model: Model, checkpoint: Checkpoint) -> None:
        options = model.choose(solver=(solver_of(checkpoint), *SOLVERS))
        precision = model.precision or checkpoint.precision
        self.card = video(model.name, checkpoint, precision, options["solver"])
        self.loops = loops(self.card, options["solver"])
        self._solver = options["solver"]
        self._model = model
        self._checkpoint = checkpoint
        self._precision = precision
        self._tokens = TokenLimit(checkpoint.parts["tokenizer"].folder, TEXT_TOKENS)

    def weights_digest(self) -> str:
        return digest(self._checkpoint.stamps(self._model.files))

    def notices(self, request: ResolvedRequest) -> tuple[Notice, ...]:
        self._tokens.check("prompt", request.prompt)
        self._tokens.check("negative_prompt", request.negative_prompt)
        return ()

    def sizes(self, request: ResolvedRequest) -> Mapping[str, LoopSizes]:
        return sizes(self.card, self._checkpoint, self._precision, self._solver, request)

    def load(self, device: str) -> Components:
        return Modules(self._checkpoint, self._precision, device)

    def reference(self, request: ResolvedRequest) -> "Mapping[str, torch.Tensor]":
        from cards.wan import reference

        return reference.outputs(self._checkpoint.root, self._precision, request, self.card)

    def bodies(self) -> Mapping[str, StepBody]:
        from cards.wan import steps

        return steps.BODIES


def open(model: Model, checkpoint: Checkpoint) -> Wan:
    """Raises BadCheckpoint."""
    return Wan(model, checkpoint)
