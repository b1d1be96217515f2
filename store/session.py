"""The write connection: opened when it is needed, thrown away after trouble."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, NotSupportedError, ProgrammingError
from sqlalchemy.exc import TimeoutError as NoConnectionLeft

from store.database import Database
from store.errors import StoreError, StoreUnavailable
from store.journal import Append, Appended

T = TypeVar("T")

# What is wrong with one statement; anything else is wrong with the disk or the database.
_OF_THE_STATEMENT = (DataError, IntegrityError, NotSupportedError, ProgrammingError)


@contextmanager
def unavailable_when_refused() -> Iterator[None]:
    """Turn the database's own troubles into StoreUnavailable, and leave those of a statement."""
    try:
        yield
    except _OF_THE_STATEMENT:
        raise
    except DBAPIError as error:
        raise StoreUnavailable(" ".join(str(error.orig).split())) from error
    except (TimeoutError, NoConnectionLeft) as error:
        raise StoreUnavailable("the store does not answer") from error


class Session:
    """Transactions on the one connection that writes, one at a time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Connection | None = None
        self._turn = threading.Lock()

    def transact(self, work: Callable[[Connection], T]) -> T:
        """Do all of the work or none of it. Raises StoreUnavailable, StoreLocked, and what the work raises."""
        with self._connected() as connection, connection.begin():
            return work(connection)

    def write(self, appends: Sequence[Append]) -> list[Appended | StoreError]:
        """Write a group, as the database does it best. Raises StoreUnavailable, StoreLocked."""
        with self._connected() as connection:
            return self._database.write(connection, appends)

    def tidy(self, appends: int, nbytes: int) -> None:
        """House-keeping between transactions."""
        with self._turn:
            if self._connection is not None:
                self._database.tidy(self._connection, appends, nbytes)

    def close(self) -> None:
        with self._turn:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        with self._turn, unavailable_when_refused():
            connection = self._connection or self._open()
            try:
                yield connection
            except _OF_THE_STATEMENT:
                raise
            except DBAPIError:
                self._discard(connection)
                raise

    def _open(self) -> Connection:
        self._connection = self._database.connect()
        return self._connection

    def _discard(self, connection: Connection) -> None:
        """After such an error nothing is known of the connection, least of all whether it would roll back."""
        connection.invalidate()
        connection.close()
        self._connection = None
