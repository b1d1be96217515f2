"""Many appends in one transaction, with the same few statements for one append and for hundreds.

Whoever calls is the only writer until the transaction ends: what is read of the heads stays true.
"""

from collections.abc import Sequence

from sqlalchemy import Connection

from store.admission import Admission, Admitted, Head, Taken
from store.driver import Driver, driver_of
from store.errors import StoreError
from store.journal import Append, Appended, JobRow
from store.rows import answers, blob_row, checkpoint_rows, event_rows, head_rows, job_row, key_rows

FIND_HEADS = "SELECT stream, version, epoch, hash FROM streams WHERE stream {one_of}"

NEWEST = "SELECT coalesce(max(position), 0) FROM events"

FIND_KEYS = "SELECT key, stream, fingerprint FROM idempotency WHERE key {one_of}"

FIND_LEASES = "SELECT name FROM engines WHERE expires_at > {now} AND name {one_of}"

MOVE_HEADS = """
INSERT INTO streams (stream, version, epoch, hash) VALUES (:stream, :version, :epoch, :hash)
ON CONFLICT (stream) DO UPDATE SET version = excluded.version, epoch = excluded.epoch, hash = excluded.hash
"""

ADD_KEYS = "INSERT INTO idempotency (key, fingerprint, stream) VALUES (:key, :fingerprint, :stream)"

ADD_EVENTS = """
INSERT INTO events (stream, version, epoch, type, at, body, hash)
VALUES (:stream, :version, :epoch, :type, :at, :body, :hash)
"""

SAVE_CHECKPOINTS = """
INSERT INTO checkpoints (stream, version, body) VALUES (:stream, :version, :body)
ON CONFLICT (stream) DO UPDATE SET version = excluded.version, body = excluded.body
"""

ADD_BLOBS = """
INSERT INTO blobs (digest, size, data, seen_at) VALUES (:digest, :size, :data, {now})
ON CONFLICT (digest) DO UPDATE SET data = excluded.data, seen_at = excluded.seen_at
"""

SAVE_JOBS = """
INSERT INTO jobs (id, status, model, priority, submitted_at, updated_at, open, owner, attempts, metadata)
VALUES (:id, :status, :model, :priority, :submitted_at, :updated_at, :open, :owner, :attempts, :metadata)
ON CONFLICT (id) DO UPDATE SET
    status = excluded.status, model = excluded.model, priority = excluded.priority,
    submitted_at = excluded.submitted_at, updated_at = excluded.updated_at, open = excluded.open,
    owner = excluded.owner, attempts = excluded.attempts, metadata = excluded.metadata
"""


def write_group(connection: Connection, appends: Sequence[Append]) -> list[Appended | StoreError]:
    """Write what may be written; the answers are in the order of the appends."""
    with driver_of(connection) as driver:
        admission = Admission(
            find_heads(driver, {append.stream for append in appends}),
            find_keys(driver, appends),
            find_leases(driver, appends),
        )
        verdicts = [admission.admit(append) for append in appends]
        admitted = [verdict for verdict in verdicts if isinstance(verdict, Admitted)]
        written = iter(_write(driver, admitted))
        return [next(written) if isinstance(verdict, Admitted) else verdict for verdict in verdicts]


def replace_jobs(connection: Connection, rows: Sequence[JobRow], at: int | None = None) -> bool:
    """With `at` only if nothing was appended after that position."""
    with driver_of(connection) as driver:
        if at is not None and driver.ask(NEWEST, {})[0][0] != at:
            return False
        driver.change("DELETE FROM jobs")
        driver.write(SAVE_JOBS, [job_row(row) for row in rows])
    return True


def find_heads(driver: Driver, streams: set[str]) -> dict[str, Head]:
    return {stream: Head(*head) for stream, *head in driver.find(FIND_HEADS, streams)}


def find_keys(driver: Driver, appends: Sequence[Append]) -> dict[str, Taken]:
    found = driver.find(FIND_KEYS, {append.key.key for append in appends if append.key is not None})
    return {key: Taken(stream, fingerprint) for key, stream, fingerprint in found}


def find_leases(driver: Driver, appends: Sequence[Append]) -> set[str]:
    """Those that are live of the leases that the appends name."""
    return {name for (name,) in driver.find(FIND_LEASES, {a.lease for a in appends if a.lease is not None})}


def _write(driver: Driver, admitted: Sequence[Admitted]) -> list[Appended]:
    driver.write(MOVE_HEADS, head_rows(admitted))
    driver.write(ADD_KEYS, key_rows(admitted))
    driver.write(ADD_BLOBS, [blob_row(blob) for each in admitted for blob in each.append.blobs])
    events = list(event_rows(admitted))
    driver.write(ADD_EVENTS, events)
    written = answers(admitted, driver.last_position() if events else 0)
    driver.write(SAVE_CHECKPOINTS, checkpoint_rows(admitted))
    driver.write(SAVE_JOBS, [job_row(each.append.row) for each in admitted if each.append.row is not None])
    return written
