"""Many appends to PostgreSQL as one statement, which is its own transaction: one round trip and one commit a group.

What is admitted here is admitted on heads that may be out of date, since other engines write too: the statement
moves only the heads that are still where they were thought to be, and writes only for those.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import psycopg
from psycopg.types.numeric import Int8BinaryDumper
from sqlalchemy import Connection

from store.admission import Admission, Admitted, Head
from store.driver import Driver, driver_of
from store.errors import StoreError, StreamConflict
from store.group import find_heads, find_keys, find_leases
from store.journal import Append, Appended
from store.rows import Row, answers, blob_row, checkpoint_rows, event_rows, head_rows, job_row, key_rows

WRITE_LOCK = 0x6B657967
"""Held by a transaction that appends: without it a later position could be seen before an earlier one."""

KNOWN = 4096
"""Heads that a writer remembers, so that it need not ask for those that only it moves."""

GROUP = f"""
WITH turn AS MATERIALIZED (SELECT pg_advisory_xact_lock({WRITE_LOCK})),
heads AS MATERIALIZED (
    SELECT h.* FROM turn, unnest(
        %(h_stream)b::text[], %(h_expected)b::bigint[], %(h_held)b::bigint[],
        %(h_version)b::bigint[], %(h_epoch)b::bigint[], %(h_was)b::bytea[], %(h_hash)b::bytea[], %(h_lease)b::text[]
    ) AS h (stream, expected, held, version, epoch, was, hash, lease)
    WHERE h.lease = '' OR EXISTS (
        SELECT FROM engines WHERE name = h.lease AND expires_at > extract(epoch FROM clock_timestamp()))
),
moved AS (
    UPDATE streams SET version = h.version, epoch = h.epoch, hash = h.hash FROM heads h
    WHERE streams.stream = h.stream AND streams.version = h.expected AND streams.epoch = h.held AND streams.hash = h.was
    RETURNING streams.stream
),
made AS (
    INSERT INTO streams (stream, version, epoch, hash)
    SELECT stream, version, epoch, hash FROM heads WHERE expected = 0 AND held = 0
    ON CONFLICT (stream) DO NOTHING RETURNING stream
),
taken AS MATERIALIZED (SELECT stream FROM moved UNION SELECT stream FROM made),
added AS (
    INSERT INTO events (stream, version, epoch, type, at, body, hash)
    SELECT e.stream, e.version, e.epoch, e.type, e.at, e.body, e.hash FROM unnest(
        %(e_stream)b::text[], %(e_version)b::bigint[], %(e_epoch)b::bigint[], %(e_type)b::text[],
        %(e_at)b::float8[], %(e_body)b::bytea[], %(e_hash)b::bytea[]
    ) WITH ORDINALITY AS e (stream, version, epoch, type, at, body, hash, place)
    JOIN taken ON taken.stream = e.stream ORDER BY e.place
    RETURNING position
),
saved AS (
    INSERT INTO checkpoints (stream, version, body)
    SELECT c.stream, c.version, c.body FROM unnest(
        %(c_stream)b::text[], %(c_version)b::bigint[], %(c_body)b::bytea[]
    ) AS c (stream, version, body) JOIN taken ON taken.stream = c.stream
    ON CONFLICT (stream) DO UPDATE SET version = excluded.version, body = excluded.body
)"""

KEYS = """,
named AS (
    INSERT INTO idempotency (key, fingerprint, stream)
    SELECT k.key, k.fingerprint, k.stream FROM unnest(
        %(k_key)b::text[], %(k_fingerprint)b::text[], %(k_stream)b::text[]
    ) AS k (key, fingerprint, stream) JOIN taken ON taken.stream = k.stream
)"""

BLOBS = """,
kept AS (
    INSERT INTO blobs (digest, size, data, seen_at)
    SELECT DISTINCT ON (b.digest) b.digest, b.size, b.data, extract(epoch FROM clock_timestamp()) FROM unnest(
        %(b_stream)b::text[], %(b_digest)b::text[], %(b_size)b::bigint[], %(b_data)b::bytea[]
    ) AS b (stream, digest, size, data) JOIN taken ON taken.stream = b.stream
    ON CONFLICT (digest) DO UPDATE SET data = excluded.data, seen_at = excluded.seen_at
)"""

JOBS = """,
listed AS (
    INSERT INTO jobs (id, status, model, priority, submitted_at, updated_at, open, owner, attempts, metadata)
    SELECT j.id, j.status, j.model, j.priority, j.submitted_at, j.updated_at, j.open, j.owner, j.attempts,
        j.metadata::json
    FROM unnest(
        %(j_stream)b::text[], %(j_id)b::text[], %(j_status)b::text[], %(j_model)b::text[], %(j_priority)b::bigint[],
        %(j_submitted_at)b::float8[], %(j_updated_at)b::float8[], %(j_open)b::bool[], %(j_owner)b::text[],
        %(j_attempts)b::bigint[], %(j_metadata)b::text[]
    ) AS j (stream, id, status, model, priority, submitted_at, updated_at, open, owner, attempts, metadata)
    JOIN taken ON taken.stream = j.stream
    ON CONFLICT (id) DO UPDATE SET
        status = excluded.status, model = excluded.model, priority = excluded.priority,
        submitted_at = excluded.submitted_at, updated_at = excluded.updated_at, open = excluded.open,
        owner = excluded.owner, attempts = excluded.attempts, metadata = excluded.metadata
)"""

OUTCOME = " SELECT coalesce(array_agg(stream), '{}'), (SELECT max(position) FROM added) FROM taken"


class GroupWriter:
    """Writes groups on a connection that it is lent, and remembers where it left the streams."""

    def __init__(self) -> None:
        self._known: dict[str, Head] = {}

    def write(self, connection: Connection, appends: Sequence[Append]) -> list[Appended | StoreError]:
        """The answers are in the order of the appends."""
        with driver_of(connection) as driver:
            admission = Admission(
                self._heads(driver, appends), find_keys(driver, appends), find_leases(driver, appends)
            )
            verdicts = [admission.admit(append) for append in appends]
            admitted = [verdict for verdict in verdicts if isinstance(verdict, Admitted)]
            taken, last = self._execute(driver, admitted) if admitted else (frozenset(), 0)
        written = iter(answers([each for each in admitted if each.append.stream in taken], last))
        self._remember(admitted, taken)
        return [
            _refused(verdict, taken) or next(written) if isinstance(verdict, Admitted) else verdict
            for verdict in verdicts
        ]

    def _heads(self, driver: Driver, appends: Sequence[Append]) -> dict[str, Head]:
        """Those that are known and as the first append to them expects; the others are asked for."""
        first: dict[str, Append] = {}
        for append in appends:
            first.setdefault(append.stream, append)
        known = {
            stream: head
            for stream, append in first.items()
            if (head := self._known.get(stream)) is not None and head.takes(append)
        }
        return known | find_heads(driver, first.keys() - known.keys())

    def _execute(self, driver: Driver, admitted: Sequence[Admitted]) -> tuple[frozenset[str], int]:
        """The streams whose head was where it was thought to be, and the last position given out."""
        parts = {"": GROUP, "k": KEYS, "b": BLOBS, "j": JOBS}
        tables = {
            "h": _head_changes(admitted),
            "e": list(event_rows(admitted)),
            "c": checkpoint_rows(admitted),
            "k": key_rows(admitted),
            "b": [{"stream": a.append.stream, **blob_row(blob)} for a in admitted for blob in a.append.blobs],
            "j": list(_job_rows(admitted)),
        }
        statement = "".join(part for name, part in parts.items() if not name or tables[name]) + OUTCOME
        columns = {
            f"{name}_{column}": [row[column] for row in rows]
            for name, rows in tables.items()
            if name in "hec" or rows
            for column in COLUMNS[name]
        }
        [(taken, last)] = driver.ask(statement, columns)
        return frozenset(taken), last or 0

    def _remember(self, admitted: Sequence[Admitted], taken: frozenset[str]) -> None:
        for each in admitted:
            stream = each.append.stream
            if stream in taken:
                self._known[stream] = each.head
            else:
                self._known.pop(stream, None)
        while len(self._known) > KNOWN:
            self._known.pop(next(iter(self._known)))


COLUMNS = {
    "h": ("stream", "expected", "held", "version", "epoch", "was", "hash", "lease"),
    "e": ("stream", "version", "epoch", "type", "at", "body", "hash"),
    "c": ("stream", "version", "body"),
    "k": ("key", "fingerprint", "stream"),
    "b": ("stream", "digest", "size", "data"),
    "j": (
        "stream", "id", "status", "model", "priority", "submitted_at", "updated_at", "open", "owner", "attempts",
        "metadata",
    ),
}  # fmt: skip


def prepare(connection: psycopg.Connection[Any]) -> None:
    """All whole numbers travel as bigint: by their size, as psycopg has it, every group would be another statement."""
    connection.adapters.register_dumper(int, Int8BinaryDumper)


def _head_changes(admitted: Iterable[Admitted]) -> list[Row]:
    """From where the first append to a stream expects it to where the last one leaves it."""
    first: dict[str, Admitted] = {}
    for each in admitted:
        first.setdefault(each.append.stream, each)
    return [
        head
        | {
            "expected": one.append.expected,
            "held": one.append.epoch,
            "was": one.was,
            "lease": one.append.lease or "",
        }
        for head in head_rows(admitted)
        for one in [first[head["stream"]]]
    ]


def _job_rows(admitted: Iterable[Admitted]) -> Iterable[Row]:
    """The last of each job."""
    rows = {
        each.append.row.id: {"stream": each.append.stream, **job_row(each.append.row)}
        for each in admitted
        if each.append.row is not None
    }
    return rows.values()


def _refused(admitted: Admitted, taken: frozenset[str]) -> StoreError | None:
    append = admitted.append
    if append.stream in taken:
        return None
    return StreamConflict(append.stream, append.expected, append.epoch)
