"""Many appends in one transaction, with the same few statements for one append and for hundreds.

Whoever calls is the only writer until the transaction ends: what is read of the heads stays true.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import asdict
from sqlalchemy import Connection

from store.admission import Admission, Head, Taken, head_after
from store.driver import Driver, driver_of
from store.errors import StoreError
from store.journal import Append, Appended, Blob, JobRow

Row = dict[str, Any]

FIND_HEADS = "SELECT stream, version, epoch FROM streams WHERE stream {one_of}"

FIND_KEYS = "SELECT key, stream, fingerprint FROM idempotency WHERE key {one_of}"

MOVE_HEADS = """
INSERT INTO streams (stream, version, epoch) VALUES (:stream, :version, :epoch)
ON CONFLICT (stream) DO UPDATE SET version = excluded.version, epoch = excluded.epoch
"""

ADD_KEYS = "INSERT INTO idempotency (key, fingerprint, stream) VALUES (:key, :fingerprint, :stream)"

ADD_EVENTS = """
INSERT INTO events (stream, version, epoch, type, at, body)
VALUES (:stream, :version, :epoch, :type, :at, :body)
"""

SAVE_CHECKPOINTS = """
INSERT INTO checkpoints (stream, version, body) VALUES (:stream, :version, :body)
ON CONFLICT (stream) DO UPDATE SET version = excluded.version, body = excluded.body
"""

ADD_BLOBS = """
INSERT INTO blobs (digest, size, data) VALUES (:digest, :size, :data)
ON CONFLICT (digest) DO UPDATE SET data = excluded.data
"""

SAVE_JOBS = """
INSERT INTO jobs (id, status, model, priority, submitted_at, updated_at, open)
VALUES (:id, :status, :model, :priority, :submitted_at, :updated_at, :open)
ON CONFLICT (id) DO UPDATE SET
    status = excluded.status, model = excluded.model, priority = excluded.priority,
    submitted_at = excluded.submitted_at, updated_at = excluded.updated_at, open = excluded.open
"""


def write_group(connection: Connection, appends: Sequence[Append]) -> list[Appended | StoreError]:
    """Write what may be written; the answers are in the order of the appends."""
    with driver_of(connection) as driver:
        admission = Admission(_heads(driver, appends), _keys(driver, appends))
        refusals = [admission.admit(append) for append in appends]
        accepted = [append for append, refusal in zip(appends, refusals, strict=True) if refusal is None]
        answers = iter(_write(driver, accepted))
        return [next(answers) if refusal is None else refusal for refusal in refusals]


def replace_jobs(connection: Connection, rows: Sequence[JobRow]) -> None:
    connection.exec_driver_sql("DELETE FROM jobs")
    with driver_of(connection) as driver:
        driver.write(SAVE_JOBS, [asdict(row) for row in rows])


def _heads(driver: Driver, appends: Sequence[Append]) -> dict[str, Head]:
    found = driver.find(FIND_HEADS, {append.stream for append in appends})
    return {stream: Head(version, epoch) for stream, version, epoch in found}


def _keys(driver: Driver, appends: Sequence[Append]) -> dict[str, Taken]:
    found = driver.find(FIND_KEYS, {append.key.key for append in appends if append.key is not None})
    return {key: Taken(stream, fingerprint) for key, stream, fingerprint in found}


def _write(driver: Driver, accepted: Sequence[Append]) -> list[Appended]:
    heads = {append.stream: head_after(append) for append in accepted}  # the last of a stream is where it ends up
    driver.write(MOVE_HEADS, [{"stream": stream, **asdict(head)} for stream, head in heads.items()])
    driver.write(ADD_KEYS, [{"stream": a.stream, **asdict(a.key)} for a in accepted if a.key is not None])
    driver.write(ADD_BLOBS, [_blob_row(blob) for append in accepted for blob in append.blobs])
    driver.write(ADD_EVENTS, [row for append in accepted for row in _event_rows(append)])
    answers = _answers(driver, accepted)
    saved = {a.stream: _checkpoint_row(a) for a in accepted if a.checkpoint is not None}
    driver.write(SAVE_CHECKPOINTS, list(saved.values()))  # a stream has one, the last
    driver.write(SAVE_JOBS, [asdict(append.row) for append in accepted if append.row is not None])
    return answers


def _answers(driver: Driver, accepted: Sequence[Append]) -> list[Appended]:
    """Where the events just inserted ended up: nobody else gives out positions now, so they have no holes."""
    count = sum(len(append.events) for append in accepted)
    position = driver.last_position() - count if count else 0
    answers: list[Appended] = []
    for append in accepted:
        position += len(append.events)
        answers.append(Appended(version=head_after(append).version, position=position if append.events else 0))
    return answers


def _event_rows(append: Append) -> Iterator[Row]:
    epoch = head_after(append).epoch
    for version, event in enumerate(append.events, start=append.expected + 1):
        yield {
            "stream": append.stream,
            "version": version,
            "epoch": epoch,
            "type": event.type,
            "at": append.at,
            "body": event.body,
        }


def _checkpoint_row(append: Append) -> Row:
    return {"stream": append.stream, "version": head_after(append).version, "body": append.checkpoint}


def _blob_row(blob: Blob) -> Row:
    return {"digest": blob.digest, "size": len(blob.data), "data": blob.data}
