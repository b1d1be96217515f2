"""A store in a PostgreSQL database: any number of engines write, and their commits take turns."""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import psycopg
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

from store.bell import Bell
from store.database import Durability
from store.errors import StoreError
from store.journal import Append, Appended
from store.pg_group import WRITE_LOCK, GroupWriter, prepare

PATIENCE = {"connect_timeout": 10}


class Postgres:
    exclusive = False
    size: ColumnElement[int] = literal_column("pg_database_size(current_database())", BigInteger)

    def __init__(self, url: URL, durability: Durability = "power") -> None:
        self._synchronous = {"power": "on", "process": "off"}[durability]
        self.url = url.set(drivername="postgresql+psycopg")
        self._groups = GroupWriter()

    def hold(self) -> AbstractContextManager[None]:
        return nullcontext()  # who may write what is for leases and epochs to say

    def connect(self) -> Connection:
        engine = create_engine(self.url, poolclass=NullPool, connect_args={**PATIENCE, "application_name": _who()})
        event.listen(engine, "begin", _take_turn)
        connection = engine.connect()
        try:
            with connection.begin():
                connection.exec_driver_sql(f"SET SESSION synchronous_commit = {self._synchronous}")
                # To plan a group takes longer than to write it, and the plan is the same whatever is in it.
                connection.exec_driver_sql("SET SESSION plan_cache_mode = force_generic_plan")
            prepare(_driver(connection))
        except BaseException:
            connection.close()
            raise
        return connection

    def write(self, connection: Connection, appends: Sequence[Append]) -> list[Appended | StoreError]:
        driver = _driver(connection)
        driver.autocommit = True  # a group is one statement
        try:
            return self._groups.write(connection, appends)
        finally:
            if not driver.closed:
                driver.autocommit = False

    def reads(self) -> AsyncEngine:
        return create_async_engine(self.url, isolation_level="AUTOCOMMIT", connect_args=PATIENCE)

    def inspection(self) -> Engine:
        engine = create_engine(self.url, poolclass=NullPool, connect_args=PATIENCE)
        event.listen(engine, "begin", _read_only)
        return engine

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        engine = create_engine(
            self.url,
            poolclass=NullPool,
            connect_args=PATIENCE,
            isolation_level="REPEATABLE READ",
            execution_options={"postgresql_readonly": True},
        )
        with engine.connect() as connection:
            yield connection

    def bell(self, *, poll_s: float, retry_s: float) -> Bell:
        return Bell(self.url, poll_s=poll_s, retry_s=retry_s)

    def tidy(self, connection: Connection, appends: int, nbytes: int) -> None:
        """PostgreSQL moves its own log."""


def _who() -> str:
    return f"engine {os.getpid()} on {socket.gethostname()}"[:63]


def _driver(connection: Connection) -> psycopg.Connection[tuple[object, ...]]:
    driver: psycopg.Connection[tuple[object, ...]] = connection.connection.driver_connection  # type: ignore[assignment]
    return driver


def _take_turn(connection: Connection) -> None:
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({WRITE_LOCK})")


def _read_only(connection: Connection) -> None:
    connection.exec_driver_sql("SET TRANSACTION READ ONLY")
