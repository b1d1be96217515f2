"""What a process asks of the disk or the database, and the moments at which it may be killed over it."""

import os
from collections.abc import Callable
from enum import Enum
from typing import Protocol, TypeVar

from msgspec import Struct

T = TypeVar("T")


class Operation(Struct, frozen=True):
    """`kind` is create, write, truncate, sync, rename, link, unlink, folder, sync_folder, statement, or told.

    `told` is no operation: it marks what the process had been promised by then.
    """

    kind: str
    path: str
    data: bytes = b""
    """Of a write; of a sync all that is in the file, if nobody saw it written. A truncation has the new size in
    `offset`, a rename or a link the new name in `target`.
    """

    offset: int = 0
    target: str = ""

    @property
    def has_halves(self) -> bool:
        return self.kind == "statement" or (self.kind == "write" and len(self.data) > 1)

    def __str__(self) -> str:
        return f"{self.kind} {os.path.basename(self.path)}"


class Moment(Enum):
    BEFORE = "before"
    HALFWAY = "halfway through"
    AFTER = "after"


class Tap(Protocol):
    """Stands in front of every operation: it calls `act` to do all of it, or `half` to do a part."""

    def __call__(self, operation: Operation, act: Callable[[], T], half: Callable[[], object] | None = None) -> T: ...
