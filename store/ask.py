"""A person's own question to a store: one statement, which reads, and for so long."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeAlias

import psycopg
from msgspec import Struct
from sqlalchemy import Connection

from store.errors import BadQuestion
from store.open import database_at
from store.session import unavailable_when_refused

READS = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)  # fmt: skip

Rows: TypeAlias = tuple[Any, Iterator[tuple[Any, ...]]]
"""A cursor, and what it finds."""

LOOK_EVERY = 1000
"""SQLite's instructions between two looks at the clock."""


class Answered(Struct, frozen=True):
    """`more`: the statement had further rows."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    more: bool


def ask(url: str, sql: str, *, limit: int, timeout_s: float, monotonic: Callable[[], float]) -> Answered:
    """Nothing that the statement says can change the store. Raises BadQuestion, StoreUnavailable."""
    with unavailable_when_refused(), database_at(url).snapshot() as connection:
        sqlite = connection.dialect.name == "sqlite"
        asked = _sqlite(connection, sql, timeout_s, monotonic) if sqlite else _postgres(connection, sql, timeout_s)
        with asked as (cursor, rows):
            found = list(islice(rows, limit + 1))
            columns = tuple(column[0] for column in cursor.description or ())
    return Answered(columns, found[:limit], len(found) > limit)


@contextmanager
def _sqlite(connection: Connection, sql: str, timeout_s: float, monotonic: Callable[[], float]) -> Iterator[Rows]:
    driver: Any = connection.connection.driver_connection
    deadline = monotonic() + timeout_s
    driver.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in READS else sqlite3.SQLITE_DENY)
    driver.set_progress_handler(lambda: monotonic() > deadline, LOOK_EVERY)
    try:
        cursor = driver.execute(sql)
        yield cursor, iter(cursor)
    except (sqlite3.Error, sqlite3.Warning) as error:  # a Warning: there are several statements
        raise BadQuestion(_in_our_words(str(error), timeout_s)) from error
    finally:
        driver.set_authorizer(None)
        driver.set_progress_handler(None, 0)


@contextmanager
def _postgres(connection: Connection, sql: str, timeout_s: float) -> Iterator[Rows]:
    connection.exec_driver_sql(f"SET LOCAL statement_timeout = {int(timeout_s * 1000)}")
    driver: Any = connection.connection.driver_connection
    try:
        with driver.cursor("ask") as cursor:  # declared for one statement, and only one that reads
            cursor.execute(sql)
            yield cursor, iter(cursor)
    except psycopg.errors.QueryCanceled as error:
        raise BadQuestion(_in_our_words("interrupted", timeout_s)) from error
    except psycopg.errors.ReadOnlySqlTransaction as error:
        raise BadQuestion(_in_our_words("not authorized", timeout_s)) from error
    except (psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError, psycopg.InternalError) as error:
        problem = str(error).partition("\n")[0]
        begins = f'syntax error at or near "{next(iter(sql.split()), "")}"'
        raise BadQuestion(_in_our_words("not authorized" if problem == begins else problem, timeout_s)) from error


def _in_our_words(problem: str, timeout_s: float) -> str:
    if problem == "interrupted":
        return f"the statement took longer than {timeout_s:g} s: ask for less, or give it more time"
    if "one statement at a time" in problem or "multiple commands" in problem:
        return "there are several statements: ask one at a time"
    if problem.startswith("not authorized"):
        return "only reading is allowed: ask with SELECT"
    return problem
