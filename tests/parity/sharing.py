"""Ways in which the steps of a batch share forwards that are not the worker's own."""

from collections.abc import Iterable, Sequence

from cards.forward import Forward, Outputs
from workers.sharing import Evaluated, Sharing


class Counting(Sharing):
    """`calls` has of each call that is shared how many forwards it is."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []

    def call(self, forwards: Sequence[Forward], names: Iterable[str]) -> Sequence[Evaluated]:
        self.calls.append(len(forwards))
        return super().call(forwards, names)


class Unmeasured(Sharing):
    """Every module is believed to be batch invariant: none goes part by part."""

    def measure(self, forwards: Sequence[Forward], made: Sequence[Outputs]) -> tuple[str, ...]:
        return ()
