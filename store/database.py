"""What differs between the databases, and only that."""

from contextlib import AbstractContextManager
from typing import Protocol

from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncEngine


class Database(Protocol):
    def hold(self) -> AbstractContextManager[None]:
        """Keep other engines out for as long as it is entered. Raises StoreLocked."""
        ...

    def connect(self) -> Connection:
        """The write connection: what it begins, it begins as the only writer. Raises StoreLocked."""
        ...

    def reads(self) -> AsyncEngine:
        """Connections that write nothing and hold no snapshot from one statement to the next."""
        ...

    def inspection(self) -> Engine:
        """For a look at the schema, beside a live engine too."""
        ...

    def tidy(self, connection: Connection, appends: int, nbytes: int) -> None:
        """Called between groups with what the last one wrote."""
        ...
