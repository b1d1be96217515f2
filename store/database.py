"""What differs between the databases, and only that."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Literal, Protocol

from sqlalchemy import ColumnElement, Connection, Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from store.errors import StoreError
from store.journal import Append, Appended

if TYPE_CHECKING:
    from store.bell import Bell

POLL_S = 1.0
RETRY_S = 0.5

Durability = Literal["power", "process"]
"""What an acknowledged append survives."""


class Database(Protocol):
    exclusive: bool
    """Whether one engine holds it at a time."""

    size: ColumnElement[int]
    """What it takes on disk, in bytes."""

    def hold(self) -> AbstractContextManager[None]:
        """Keep other engines out for as long as it is entered. Raises StoreLocked."""
        ...

    def connect(self) -> Connection:
        """The write connection: what it begins, it begins as the only writer for the time being. Raises StoreLocked."""
        ...

    def write(self, connection: Connection, appends: Sequence[Append]) -> list[Appended | StoreError]:
        """Many appends as one group, on the write connection; the answers are in their order."""
        ...

    def reads(self) -> AsyncEngine:
        """Connections that write nothing and hold no snapshot from one statement to the next."""
        ...

    def inspection(self) -> Engine:
        """For a look that changes nothing, beside a live engine too."""
        ...

    def snapshot(self) -> AbstractContextManager[Connection]:
        """A connection that reads the store as it is at one moment, for as long as it is entered."""
        ...

    def bell(self, *, poll_s: float, retry_s: float) -> "Bell | None":
        """How the engines of one store wake each other; None where there is only one."""
        ...

    def tidy(self, connection: Connection, appends: int, nbytes: int) -> None:
        """Called between groups with what the last one wrote."""
        ...
