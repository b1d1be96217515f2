"""A person's own question to a store: one statement, which reads, and for so long."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from math import ceil
from typing import Any, TypeAlias

import psycopg
from msgspec import Struct
from sqlalchemy import Connection

from store.errors import BadQuestion, QuestionTooLong
from store.open import database_at
from store.session import unavailable_when_refused

READS = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)  # fmt: skip

Rows: TypeAlias = tuple[Any, Iterator[tuple[Any, ...]]]
"""A cursor, and what it finds."""

NOTHING = "it is empty: ask with SELECT"

LONGEST_MS = 2**31 - 1
"""The longest time that PostgreSQL takes; 0 would be for ever."""

LOOK_EVERY = 1000
"""SQLite's instructions between two looks at the clock."""


class Answered(Struct, frozen=True):
    """`more`: the statement had further rows."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    more: bool


def ask(url: str, sql: str, *, limit: int, timeout_s: float, monotonic: Callable[[], float]) -> Answered:
    """Nothing that the statement says can change the store. Raises BadQuestion, QuestionTooLong, StoreUnavailable."""
    if not sql.strip():
        raise BadQuestion(NOTHING)
    with unavailable_when_refused(), database_at(url).snapshot() as connection:
        sqlite = connection.dialect.name == "sqlite"
        asked = _sqlite(connection, sql, timeout_s, monotonic) if sqlite else _postgres(connection, sql, timeout_s)
        with asked as (cursor, rows):
            found = list(islice(rows, limit + 1))
            if cursor.description is None:
                raise BadQuestion(NOTHING)
            columns = tuple(column[0] for column in cursor.description)
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
        if str(error) == "interrupted":
            raise QuestionTooLong(timeout_s) from error
        raise BadQuestion(_in_our_words(str(error))) from error
    finally:
        driver.set_authorizer(None)
        driver.set_progress_handler(None, 0)


@contextmanager
def _postgres(connection: Connection, sql: str, timeout_s: float) -> Iterator[Rows]:
    connection.exec_driver_sql(f"SET LOCAL statement_timeout = {min(LONGEST_MS, ceil(timeout_s * 1000))}")
    driver: Any = connection.connection.driver_connection
    try:
        with driver.cursor("ask") as cursor:  # declared for one statement, and only one that reads
            cursor.execute(sql)
            yield cursor, iter(cursor)
    except psycopg.errors.QueryCanceled as error:
        raise QuestionTooLong(timeout_s) from error
    except psycopg.errors.ReadOnlySqlTransaction as error:
        raise BadQuestion(_in_our_words("not authorized")) from error
    except (psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError, psycopg.InternalError) as error:
        problem = str(error).partition("\n")[0]
        begins = f'syntax error at or near "{next(iter(sql.split()), "")}"'
        raise BadQuestion(_in_our_words("not authorized" if problem == begins else problem)) from error


def _in_our_words(problem: str) -> str:
    if "one statement at a time" in problem or "multiple commands" in problem:
        return "there are several statements: ask one at a time"
    if problem.startswith("not authorized"):
        return "only reading is allowed: ask with SELECT"
    return problem
