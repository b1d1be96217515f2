"""A store in one SQLite file: a write-ahead log that only the writer moves into the file."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    BigInteger,
    ColumnElement,
    Connection,
    Engine,
    NullPool,
    create_engine,
    event,
    literal_column,
)
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from store.database import Durability
from store.errors import StoreError, StoreUnavailable
from store.group import write_group
from store.journal import Append, Appended
from store.lock import held

WAL_BYTES = 4 * 1024 * 1024
"""About how much is written between two checkpoints: enough to be rare, little enough to take milliseconds."""

PAGES_A_GROUP = 4
PAGES_AN_APPEND = 2
PAGE_BYTES = 4096
"""Seen in the log: 6 pages for one append, 35 for a group of sixteen, 1 KB of event and checkpoint each."""

BUSY_MS = 5000

READERS = 4
"""Each is a thread."""


class Sqlite:
    exclusive = True
    size: ColumnElement[int] = literal_column(
        "(SELECT page_count * page_size FROM pragma_page_count, pragma_page_size)", BigInteger
    )

    def __init__(self, path: Path, durability: Durability = "power") -> None:
        self._synchronous = {"power": "FULL", "process": "OFF"}[durability]
        self._path = path.resolve()  # by whatever link it is reached, it is one store
        self._wal_bytes = 0

    def hold(self) -> AbstractContextManager[None]:
        return held(self._path)

    def connect(self) -> Connection:
        engine = create_engine(
            self._url("sqlite"), poolclass=NullPool, paramstyle="named", connect_args={"check_same_thread": False}
        )
        event.listen(engine, "connect", partial(_set_up_writer, synchronous=self._synchronous))
        event.listen(engine, "begin", _begin_immediate)
        return engine.connect()

    def write(self, connection: Connection, appends: Sequence[Append]) -> list[Appended | StoreError]:
        with connection.begin():
            return write_group(connection, appends)

    def reads(self) -> AsyncEngine:
        engine = create_async_engine(
            self._url("sqlite+aiosqlite"), isolation_level="AUTOCOMMIT", pool_size=READERS, max_overflow=0
        )
        event.listen(engine.sync_engine, "connect", _set_up_reader)
        return engine

    def inspection(self) -> Engine:
        if not self._path.is_file():
            raise StoreUnavailable(f"there is no store at {self._path}")
        engine = create_engine(self._url("sqlite"), poolclass=NullPool)
        event.listen(engine, "connect", _set_up_reader)
        return engine

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        with self.inspection().connect() as connection:
            connection.exec_driver_sql("BEGIN")  # sqlite3 begins none for reads
            yield connection

    def bell(self, *, poll_s: float, retry_s: float) -> None:
        return None

    def tidy(self, connection: Connection, appends: int, nbytes: int) -> None:
        self._wal_bytes += (PAGES_A_GROUP + appends * PAGES_AN_APPEND) * PAGE_BYTES + nbytes
        if self._wal_bytes < WAL_BYTES:
            return
        self._wal_bytes = 0
        cursor = connection.connection.cursor()  # the driver's, because SQLAlchemy would begin a transaction first
        with suppress(sqlite3.Error):  # nobody waits for this; what the file can't take now, it will later
            cursor.execute("PRAGMA wal_checkpoint(PASSIVE)")
        cursor.close()

    def _url(self, driver: str) -> URL:
        return URL.create(driver, database=str(self._path))


def _set_up_writer(connection: sqlite3.Connection, _record: Any, synchronous: str) -> None:
    connection.isolation_level = None  # sqlite3 would begin late, as a reader, and then fail to become a writer
    connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute("PRAGMA wal_autocheckpoint = 0")


def _set_up_reader(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    cursor.execute("PRAGMA query_only = ON")
    cursor.close()


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
