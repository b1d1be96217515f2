"""A checkpoint directory or a workflow under a name: what `engine models add` writes, and engines and workers read."""

from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from cards.card import Precision
from cards.checkpoint import Stamps
from cards.errors import InvalidCard


class Model(Struct, frozen=True, kw_only=True):
    """`options` choose between variants that the family's card has, such as its solver; `precision` is that of the
    modules, as stored if left out. `files` saves reading gigabytes again for their digests.

    A workflow has no `folder`: its `options` name the models of its stages (cards/workflow.py).
    """

    name: str
    folder: str
    precision: Precision | None = None
    options: dict[str, str] = {}
    files: Stamps = {}

    @property
    def is_workflow(self) -> bool:
        return not self.folder

    @property
    def root(self) -> Path:
        return Path(self.folder)

    def choose(self, **allowed: tuple[str, ...]) -> dict[str, str]:
        """Each option as chosen, or the first of those allowed. Raises InvalidCard."""
        for name, value in self.options.items():
            field, there = f"options.{name}", allowed.get(name)
            if there is None:
                raise InvalidCard(self.name, field, f"there is none; there are: {', '.join(allowed) or 'none'}")
            if value not in there:
                raise InvalidCard(self.name, field, f"{value!r} is none of {', '.join(_in_order({*there}))}")
        return {name: self.options.get(name, values[0]) for name, values in allowed.items()}


def _in_order(values: Iterable[str]) -> list[str]:
    """Numbers by their size, and before words."""

    def place(value: str) -> tuple[bool, int, str]:
        is_number = value.removeprefix("-").isdecimal()
        return not is_number, int(value) if is_number else 0, value

    return sorted(values, key=place)
