"""A store in a PostgreSQL database: one engine holds it, and commits take turns so that positions follow them."""

import os
import socket
from contextlib import AbstractContextManager, nullcontext

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from store.errors import StoreLocked

ENGINE_LOCK = 0x6B657966
"""Held by an engine's write connection for as long as it lives."""

WRITE_LOCK = 0x6B657967
"""Held by a transaction that appends: without it a later position could be seen before an earlier one."""

PATIENCE = {"connect_timeout": 10}

HOLDER = text("""
    SELECT application_name FROM pg_stat_activity JOIN pg_locks USING (pid)
    WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND objid = :key AND granted
""")


class Postgres:
    def __init__(self, url: URL) -> None:
        self._url = url.set(drivername="postgresql+psycopg")

    def hold(self) -> AbstractContextManager[None]:
        return nullcontext()  # the write connection holds the lock

    def connect(self) -> Connection:
        engine = create_engine(self._url, poolclass=NullPool, connect_args={**PATIENCE, "application_name": _who()})
        event.listen(engine, "begin", _take_turn)
        connection = engine.connect()
        try:
            _lock(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def reads(self) -> AsyncEngine:
        return create_async_engine(self._url, isolation_level="AUTOCOMMIT", connect_args=PATIENCE)

    def inspection(self) -> Engine:
        return create_engine(self._url, poolclass=NullPool, connect_args=PATIENCE)

    def tidy(self, connection: Connection, appends: int, nbytes: int) -> None:
        """PostgreSQL moves its own log."""


def _who() -> str:
    return f"engine {os.getpid()} on {socket.gethostname()}"[:63]


def _lock(connection: Connection) -> None:
    with connection.begin():
        connection.exec_driver_sql("SET SESSION synchronous_commit = on")
        if not connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": ENGINE_LOCK}):
            holder = connection.scalar(HOLDER, {"key": ENGINE_LOCK})
            raise StoreLocked(f"{holder or 'another engine'} holds this database: stop it first")


def _take_turn(connection: Connection) -> None:
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({WRITE_LOCK})")
