"""A family whose weights are one checkpoint directory: what all such families have in common."""

from collections.abc import Mapping
from importlib import import_module

from cards.card import ModelCard
from cards.checkpoint import Checkpoint, digest
from cards.family import Components, Notice, StepBody
from cards.loop import Loop
from cards.model import Model
from cards.modules import Modules
from cards.request import ResolvedRequest


class OneCheckpoint:
    """A subclass says its `card` and its `loops`, and in `steps` which module has the `BODIES` of its steps."""

    steps: str
    card: ModelCard
    loops: Mapping[str, Loop]

    def __init__(self, model: Model, checkpoint: Checkpoint) -> None:
        self._model = model
        self._checkpoint = checkpoint
        self._precision = model.precision or checkpoint.precision

    def weights_digest(self) -> str:
        return digest(self._checkpoint.stamps(self._model.files))

    def component_digests(self) -> Mapping[str, str]:
        """Those of the files of each."""
        stamps = self._checkpoint.stamps(self._model.files)
        return {
            name: digest({path: stamp for path, stamp in stamps.items() if path.startswith(f"{name}/")})
            for name in self.card.components
        }

    def notices(self, request: ResolvedRequest) -> tuple[Notice, ...]:
        return ()

    def load(self, device: str) -> Components:
        return Modules(self._checkpoint, self._precision, device)

    def bodies(self) -> Mapping[str, StepBody]:
        bodies: Mapping[str, StepBody] = import_module(self.steps).BODIES
        return bodies
