"""The floor: the three statements of a fenced append straight to the driver, `group` of them a commit, no threads.

Nothing waits for a single one of them, so its latency is that of its group.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter, process_time

import anyio.to_thread
import psycopg

from ops.bench.store.ours import BODY
from ops.bench.store.runs import Contender, Run

Commit = Callable[[list[str], int], None]
"""Append one event to each of these streams, which are at this version."""

TABLES = (
    "CREATE TABLE heads (stream TEXT PRIMARY KEY, version BIGINT, epoch BIGINT)",
    "CREATE TABLE events (position {position}, stream TEXT, version BIGINT, epoch BIGINT, type TEXT,"
    " at DOUBLE PRECISION, body {bytes}, UNIQUE (stream, version))",
    "CREATE TABLE checkpoints (stream TEXT PRIMARY KEY, version BIGINT, body {bytes})",
)

MOVE = "UPDATE heads SET version = version + 1 WHERE stream = ? AND version = ? AND epoch = 0"
ADD = "INSERT INTO events (stream, version, epoch, type, at, body) VALUES (?, ?, 0, 'step_completed', 0.0, ?)"
SAVE = """
INSERT INTO checkpoints (stream, version, body) VALUES (?, ?, ?)
ON CONFLICT (stream) DO UPDATE SET version = excluded.version, body = excluded.body
"""

APPEND = """
WITH asked AS (SELECT * FROM unnest(%s::text[], %s::bigint[], %s::bytea[]) AS a (stream, version, body)),
moved AS (
    UPDATE heads SET version = heads.version + 1 FROM asked
    WHERE heads.stream = asked.stream AND heads.version = asked.version AND heads.epoch = 0
    RETURNING heads.stream, heads.version, asked.body
),
added AS (
    INSERT INTO events (stream, version, epoch, type, at, body)
    SELECT stream, version, 0, 'step_completed', 0.0, body FROM moved
)
INSERT INTO checkpoints (stream, version, body) SELECT stream, version, body FROM moved
ON CONFLICT (stream) DO UPDATE SET version = excluded.version, body = excluded.body
"""


class Loop:
    def __init__(self, commit: Commit, group: int) -> None:
        self.group = group
        self._commit = commit
        self._streams = [f"{group}-{n}" for n in range(group)]
        self._version = 0

    def contender(self, seconds: float) -> Contender:
        async def run() -> Run:
            return await anyio.to_thread.run_sync(self._run, seconds)

        return run

    def _run(self, seconds: float) -> Run:
        took: list[float] = []
        cpu, began, first = process_time(), perf_counter(), self._version
        while (at := perf_counter()) < began + seconds:
            self._commit(self._streams, self._version)
            self._version += 1
            took += [perf_counter() - at] * len(self._streams)
        return Run(took, perf_counter() - began, process_time() - cpu, self._version - first)


@contextmanager
def sqlite(url: str, groups: tuple[int, ...]) -> Iterator[list[Loop]]:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    for table in TABLES:
        connection.execute(table.format(position="INTEGER PRIMARY KEY AUTOINCREMENT", bytes="BLOB"))

    def commit(streams: list[str], version: int) -> None:
        connection.execute("BEGIN IMMEDIATE")
        for stream in streams:
            assert connection.execute(MOVE, (stream, version)).rowcount == 1
        rows = [(stream, version + 1, BODY) for stream in streams]
        connection.executemany(ADD, rows)
        connection.executemany(SAVE, rows)
        connection.execute("COMMIT")

    loops = [Loop(commit, group) for group in groups]
    add = "INSERT INTO heads VALUES (?, 0, 0)"
    connection.executemany(add, [(f"{group}-{n}",) for group in groups for n in range(group)])
    yield loops
    connection.close()


@contextmanager
def postgres(url: str, groups: tuple[int, ...]) -> Iterator[list[Loop]]:
    with psycopg.connect(url, autocommit=True) as connection:
        for table in TABLES:
            connection.execute(table.format(position="BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY", bytes="BYTEA"))

        def commit(streams: list[str], version: int) -> None:
            values = (streams, [version] * len(streams), [BODY] * len(streams))
            assert connection.execute(APPEND, values, prepare=True).rowcount == len(streams)

        for group in groups:
            for n in range(group):
                connection.execute("INSERT INTO heads VALUES (%s, 0, 0)", (f"{group}-{n}",))
        yield [Loop(commit, group) for group in groups]
