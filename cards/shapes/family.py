"""The shapes family: its card, loops, vocabulary notices, weights and step bodies under one name."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from cards import codec
from cards.family import Components, Notice, StepBody
from cards.lazy import Lazy
from cards.parallel import branches_only
from cards.request import ResolvedRequest
from cards.shapes.card import CARD
from cards.shapes.loops import LOOPS
from cards.shapes.vocabulary import tokenize

WEIGHTS = Path(__file__).with_name("weights.safetensors")


class Shapes:
    card = CARD
    loops = LOOPS

    def __init__(self, weights: Path = WEIGHTS) -> None:
        self._weights = weights

    def weights_digest(self) -> str:
        return _digest_of_file(self._weights)

    def notices(self, request: ResolvedRequest) -> tuple[Notice, ...]:
        return tuple(
            Notice("unknown_words", field, f"outside the vocabulary and ignored: {', '.join(unknown)}")
            for field, text in (("prompt", request.prompt), ("negative_prompt", request.negative_prompt))
            if (unknown := tokenize(text)[1])
        )

    def unshared(self, axis: str, degree: int) -> str:
        return branches_only(axis)

    def load(self, device: str) -> Components:
        from cards.shapes import model

        sizes = {name: spec.parameters * 4 for name, spec in self.card.components.items()}
        return Lazy(sizes, lambda name: model.load(self._weights, name).to(device))

    def bodies(self) -> Mapping[str, StepBody]:
        from cards.shapes import steps

        return steps.BODIES


@cache
def _digest_of_file(path: Path) -> str:
    return codec.digest(path.read_bytes())


FAMILY = Shapes()
