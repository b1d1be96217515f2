"""What is written besides appends: leases, streams that come from elsewhere, and what is to be forgotten.

Each function is one transaction's work and returns quickly: appends wait for it.
"""

from collections.abc import Sequence

import msgspec
from sqlalchemy import Connection, delete, select, update

from store.driver import driver_of
from store.errors import StreamConflict
from store.group import ADD_BLOBS, ADD_EVENTS, MOVE_HEADS, SAVE_CHECKPOINTS, SAVE_JOBS, find_heads
from store.journal import Event, StreamCopy
from store.rows import Row, blob_row, job_row
from store.schema import checkpoints, events, idempotency, jobs, streams

GONE = -1
"""The version of a stream that is being purged: no append expects it, and it cannot be loaded."""

EVENTS_AT_ONCE = 500

HOLD_LEASE = """
INSERT INTO engines (name, url, models, expires_at) VALUES (:name, :url, :models, {now} + :ttl_s)
ON CONFLICT (name) DO UPDATE SET url = excluded.url, models = excluded.models, expires_at = excluded.expires_at
"""

FORGET_LEASES = "DELETE FROM engines WHERE expires_at < {now} - 86400"

END_LEASE = "DELETE FROM engines WHERE name = :name"

END_OTHER_LEASES = "DELETE FROM engines WHERE name <> :name"

KEEP_BLOBS = "UPDATE blobs SET seen_at = {now} WHERE digest {one_of}"

FIND_BLOBS = "SELECT digest FROM blobs WHERE digest {one_of}"

DROP_BLOBS = "DELETE FROM blobs WHERE seen_at < {now} - :grace_s AND digest {one_of}"


def hold_lease(
    connection: Connection, name: str, *, ttl_s: float, url: str, models: Sequence[str], alone: bool
) -> None:
    """`alone`: nobody else can write here, so other leases are of engines that are gone."""
    with driver_of(connection) as driver:
        driver.change(HOLD_LEASE, name=name, ttl_s=ttl_s, url=url, models=msgspec.json.encode(list(models)).decode())
        if alone:
            driver.change(END_OTHER_LEASES, name=name)
        else:
            driver.change(FORGET_LEASES)


def end_lease(connection: Connection, name: str) -> bool:
    with driver_of(connection) as driver:
        return bool(driver.change(END_LEASE, name=name))


def adopt(connection: Connection, copy: StreamCopy) -> None:
    """Raises StreamConflict if there is a stream of that name, or one that is being purged."""
    with driver_of(connection) as driver:
        if find_heads(driver, {copy.stream}):
            raise StreamConflict(copy.stream, 0, 0)
        head = {"stream": copy.stream, "version": copy.version, "epoch": copy.epoch, "hash": copy.hash}
        driver.write(MOVE_HEADS, [head])
        driver.write(ADD_EVENTS, [_event_row(event) for event in copy.events])
        driver.write(ADD_BLOBS, [blob_row(blob) for blob in copy.blobs])
        if (saved := copy.checkpoint) is not None:
            driver.write(SAVE_CHECKPOINTS, [{"stream": copy.stream, "version": saved.version, "body": saved.body}])
        if copy.row is not None:
            driver.write(SAVE_JOBS, [job_row(copy.row)])


def begin_purge(connection: Connection, stream: str, expected: int, epoch: int) -> None:
    """The stream is gone for everyone; its events are still to be deleted. Raises StreamConflict."""
    gone = update(streams).values(version=GONE).where(streams.c.stream == stream)
    there = gone.where(streams.c.version == expected, streams.c.epoch == epoch)
    if not connection.execute(there).rowcount and not _is_going(connection, stream):
        raise StreamConflict(stream, expected, epoch)
    connection.execute(delete(checkpoints).where(checkpoints.c.stream == stream))
    connection.execute(delete(idempotency).where(idempotency.c.stream == stream))
    connection.execute(delete(jobs).where(jobs.c.id == stream.removeprefix("job/")))


def go_on_purging(connection: Connection, stream: str) -> bool:
    """Delete some events, or at last the head. Whether there is more to do."""
    if not _is_going(connection, stream):
        return False  # somebody else has brought the purge to its end, and there may be a new stream of this name
    some = select(events.c.position).where(events.c.stream == stream).limit(EVENTS_AT_ONCE)
    if connection.execute(delete(events).where(events.c.position.in_(some))).rowcount:
        return True
    connection.execute(delete(streams).where(streams.c.stream == stream))
    return False


def keep_blobs(connection: Connection, digests: Sequence[str]) -> set[str]:
    with driver_of(connection) as driver:
        driver.change_those(KEEP_BLOBS, digests)
        return {digest for (digest,) in driver.find(FIND_BLOBS, digests)}


def drop_blobs(connection: Connection, digests: Sequence[str], grace_s: float) -> int:
    with driver_of(connection) as driver:
        return driver.change_those(DROP_BLOBS, digests, grace_s=grace_s)


def _is_going(connection: Connection, stream: str) -> bool:
    found = select(streams.c.version).where(streams.c.stream == stream, streams.c.version == GONE)
    return connection.execute(found).first() is not None


def _event_row(event: Event) -> Row:
    return {
        "stream": event.stream,
        "version": event.version,
        "epoch": event.epoch,
        "type": event.type,
        "at": event.at,
        "body": event.body,
        "hash": event.hash,
    }
