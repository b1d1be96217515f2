"""The statements that an engine's write connection sends to PostgreSQL, each passed by a tap, for good.

Halfway through one the connection is lost: the server ends it, and the client lives to see the error.
"""

from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import pq

from tests.crash.operation import Operation, Tap


def watch_psycopg(tap: Tap, url: str) -> None:
    """From now on what goes to the database by a connection that is not an asynchronous one goes by the tap."""

    def watched(owner: type, name: str) -> Callable[..., Any]:
        real = getattr(owner, name)

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            connection = self if isinstance(self, psycopg.Connection) else self.connection

            def act() -> Any:
                return real(self, *args, **kwargs)

            def lose_the_connection() -> None:
                _terminate(url, connection.info.backend_pid)
                act()

            statement = " ".join(str(args[0]).split()) if args else name
            return tap(Operation("statement", statement.replace("/", "|")), act, lose_the_connection)

        return call

    for owner, name in (
        (psycopg.Cursor, "execute"),
        (psycopg.Cursor, "executemany"),
        (psycopg.Connection, "commit"),
        (psycopg.Connection, "rollback"),
    ):
        setattr(owner, name, watched(owner, name))


def _terminate(url: str, backend: int) -> None:
    """By the bare protocol, which nobody watches."""
    other = pq.PGconn.connect(url.encode())
    other.exec_(b"SELECT pg_terminate_backend(%d, 5000)" % backend)
    other.finish()
