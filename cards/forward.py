"""Forwards of modules as data: a step's body says what it wants to know, whoever runs it says where and beside what.

B batch, L tokens, D width.
"""

from collections.abc import Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

Outputs: TypeAlias = "dict[str, Tensor]"
"""What one forward makes, by name."""

OUTPUT = "output"
"""The name where there is one."""


class Adapters(Protocol):
    """What changes a module for as long as it is called. Those of one key change it alike."""

    @property
    def key(self) -> Hashable: ...
    def on(self, module: Any) -> AbstractContextManager[None]: ...


@dataclass(frozen=True, eq=False)
class Forward:
    """A call of a module by keywords. Each of `rows` has B first.

    The module may be given the rows of several forwards at once, where `common` is the same. What of it is not batch
    invariant (cards/invariant.py) then takes them `part` at a time: by default, as many as a forward has.
    """

    module: Any
    rows: "Mapping[str, Tensor]"
    common: Mapping[str, Any] = field(default_factory=dict)
    makes: tuple[str, ...] = (OUTPUT,)
    adapters: Adapters | None = None
    part: int = 0

    def __call__(self) -> Outputs:
        with self.adapted():
            return self.call(self.rows)

    def call(self, rows: "Mapping[str, Tensor]") -> Outputs:
        made = self.module(**rows, **self.common)
        return dict(zip(self.makes, made if isinstance(made, tuple) else (made,), strict=True))

    @contextmanager
    def adapted(self) -> Iterator[None]:
        if self.adapters is None:
            yield
            return
        with self.adapters.on(self.module):
            yield

    def parts(self) -> "list[Forward]":
        """In the smallest pieces that together make the same bits."""
        pieces = zip(*(tensor.split(self.part or self.count) for tensor in self.rows.values()), strict=True)
        return [replace(self, rows=dict(zip(self.rows, piece, strict=True))) for piece in pieces]

    @property
    def count(self) -> int:
        """B."""
        return len(next(iter(self.rows.values())))


def single(made: Mapping[str, Outputs]) -> "dict[str, Tensor]":
    """The outputs of forwards that make one each."""
    return {branch: outputs[OUTPUT] for branch, outputs in made.items()}


class InParts(Protocol):
    """A forward in four parts, which in turn are `whole`, to the bit.

    `modulated` is what is made of the timestep to modulate the blocks. `enter` makes (B, L, D), `head` is the first
    block, `tail` the others, `leave` makes the model's output.
    """

    def whole(self) -> "Tensor": ...
    def modulated(self) -> "Tensor": ...
    def enter(self) -> "Tensor": ...
    def head(self, hidden_BLD: "Tensor") -> "Tensor": ...
    def tail(self, hidden_BLD: "Tensor") -> "Tensor": ...
    def leave(self, hidden_BLD: "Tensor") -> "Tensor": ...
