"""Constant SQL straight to the driver, in its own words.

SQLAlchemy would take longer over each statement of an append than the database does. It keeps the connection, the
transaction and the names of the errors.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError


class Dialect(Struct, frozen=True):
    """Where the two databases have different words for one thing."""

    one_of: str
    """A condition that takes any number of names as one parameter."""

    pack: Callable[[list[str]], str | list[str]]
    last_position: str
    parameter: str
    now: str
    """Seconds since 1970 by the database's clock."""


DIALECTS = {
    "sqlite": Dialect(
        one_of="IN (SELECT value FROM json_each(:names))",
        pack=lambda names: msgspec.json.encode(names).decode(),
        last_position="SELECT last_insert_rowid()",
        parameter=r":\1",
        now="((julianday('now') - 2440587.5) * 86400.0)",
    ),
    "postgresql": Dialect(
        one_of="= ANY (:names)",
        pack=lambda names: names,
        last_position="SELECT lastval()",
        parameter=r"%(\1)s",
        now="extract(epoch FROM clock_timestamp())::float8",
    ),
}


class Driver:
    """A cursor for statements with `:name` parameters, `{one_of}` for any number of names, `{now}` for the time."""

    def __init__(self, cursor: Any, dialect: str) -> None:
        self._cursor = cursor
        self._dialect = dialect

    def find(self, sql: str, names: Collection[str]) -> Sequence[Sequence[Any]]:
        if not names:
            return ()
        packed = DIALECTS[self._dialect].pack(list(names))
        self._cursor.execute(_spoken(sql, self._dialect), {"names": packed})
        rows: Sequence[Sequence[Any]] = self._cursor.fetchall()
        return rows

    def ask(self, sql: str, parameters: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        """A statement in the database's own words."""
        self._cursor.execute(sql, parameters)
        rows: Sequence[Sequence[Any]] = self._cursor.fetchall()
        return rows

    def write(self, sql: str, rows: Sequence[Mapping[str, Any]]) -> None:
        if rows:
            self._cursor.executemany(_spoken(sql, self._dialect), rows)

    def change(self, sql: str, **parameters: Any) -> int:
        """How many rows it changed."""
        self._cursor.execute(_spoken(sql, self._dialect), parameters)
        count: int = self._cursor.rowcount
        return count

    def change_those(self, sql: str, names: Collection[str], **parameters: Any) -> int:
        """The same for any number of names."""
        packed = DIALECTS[self._dialect].pack(list(names))
        return self.change(sql, names=packed, **parameters)

    def last_position(self) -> int:
        """The position that this connection has given out last."""
        self._cursor.execute(DIALECTS[self._dialect].last_position)
        position: int = self._cursor.fetchone()[0]
        return position


@contextmanager
def driver_of(connection: Connection) -> Iterator[Driver]:
    """The driver beneath a connection, with errors that are SQLAlchemy's."""
    dbapi = connection.dialect.loaded_dbapi
    cursor = connection.connection.cursor()
    try:
        yield Driver(cursor, connection.dialect.name)
    except dbapi.Error as error:
        raise DBAPIError.instance(None, None, error, dbapi.Error, dialect=connection.dialect) from error
    finally:
        cursor.close()


@cache
def _spoken(sql: str, dialect: str) -> str:
    words = DIALECTS[dialect]
    spoken = re.sub(r"(?<!:):(\w+)", words.parameter, sql.replace("{one_of}", words.one_of))
    return spoken.replace("{now}", words.now)
