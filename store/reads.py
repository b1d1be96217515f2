"""The questions that the journal is asked, one statement each, and the Structs that come back."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, TypeAlias

import msgspec
from sqlalchemy import (
    Column,
    ColumnElement,
    Row,
    ScalarSelect,
    Select,
    Table,
    and_,
    case,
    false,
    func,
    not_,
    or_,
    select,
    tuple_,
)

from store.journal import Checkpoint, EngineRow, Event, JobFilter, JobRow, Loaded
from store.metadata import READABLE, columns, metadata_of
from store.schema import blobs, checkpoints, engines, events, idempotency, identity, jobs, streams

LAST_CHARACTER = "\U0010ffff"

Question: TypeAlias = Select[*tuple[Any, ...]]
Rows: TypeAlias = Sequence[Row[*tuple[Any, ...]]]


def loaded(names: Sequence[str]) -> Question:
    """Heads with their checkpoint, each repeated for every event after it.

    One statement sees one moment: a checkpoint that is saved meanwhile can't come between the head and its events.
    """
    return (
        select(
            streams.c.stream,
            streams.c.version,
            streams.c.epoch,
            streams.c.hash,
            checkpoints.c.version,
            checkpoints.c.body,
            *events.c,
        )
        .outerjoin_from(streams, checkpoints, checkpoints.c.stream == streams.c.stream)
        .outerjoin(
            events,
            and_(events.c.stream == streams.c.stream, events.c.version > func.coalesce(checkpoints.c.version, 0)),
        )
        .where(streams.c.stream.in_(names), streams.c.version >= 0)
        .order_by(streams.c.stream, events.c.version)
    )


def to_loaded(rows: Rows) -> dict[str, Loaded]:
    return {stream: _one_loaded(list(of_stream)) for stream, of_stream in groupby(rows, key=lambda row: row[0])}


def _one_loaded(rows: Rows) -> Loaded:
    _, version, epoch, hash, saved_at, saved, *_ = rows[0]
    return Loaded(
        version=version,
        epoch=epoch,
        checkpoint=None if saved_at is None else Checkpoint(version=saved_at, body=saved),
        events=tuple(Event(*row[6:]) for row in rows if row[6] is not None),
        hash=hash,
    )


def events_of(stream: str, after: int, limit: int) -> Question:
    """By version, which has an index; `after` is a position."""
    of_stream = events.c.stream == stream
    question = select(events).where(of_stream).order_by(events.c.version).limit(limit)
    if after > 0:
        question = question.where(events.c.version > _version_at(of_stream, after))
    return question


def _version_at(of_stream: ColumnElement[bool], position: int) -> ColumnElement[int]:
    """How far a stream was at a position; one look where the event there is its own, as it nearly always is."""
    there = select(events.c.version).where(of_stream, events.c.position == position)
    newest = select(func.max(events.c.version)).where(of_stream, events.c.position < position)
    return func.coalesce(there.scalar_subquery(), newest.scalar_subquery(), 0)


def events_of_all(after: int, limit: int) -> Question:
    return select(events).where(events.c.position > after).order_by(events.c.position).limit(limit)


def to_events(rows: Rows) -> list[Event]:
    return [Event(*row) for row in rows]


def identity_of_store() -> Question:
    return select(identity.c.store)


def names(prefix: str, after: str, limit: int) -> Question:
    return (
        select(streams.c.stream)
        .where(_starts_with(streams.c.stream, prefix), streams.c.stream > after, streams.c.version >= 0)
        .order_by(streams.c.stream)
        .limit(limit)
    )


def inline_blobs(digests: Sequence[str]) -> Question:
    return select(blobs.c.digest, blobs.c.data).where(blobs.c.digest.in_(digests))


def key(name: str) -> Question:
    return select(idempotency.c.stream, idempotency.c.fingerprint).where(idempotency.c.key == name)


def job_rows(where: JobFilter, after: str | None, limit: int) -> Question:
    question = select(*columns(jobs)).where(*_conditions(where))
    if after is not None:
        question = question.where(_in_turn_after(after) if where.open else _older_than(after))
    if where.open:
        return question.order_by(*_TURN).limit(limit)
    return question.order_by(jobs.c.submitted_at.desc(), jobs.c.id.desc()).limit(limit)


def claimable(engine: str, now: ColumnElement[float], limit: int) -> Question:
    """What is open and not another's: `now` is the database's time."""
    live = select(engines.c.name).where(engines.c.expires_at > now)
    free = or_(jobs.c.owner.is_(None), jobs.c.owner == engine, jobs.c.owner.not_in(live))
    return select(*columns(jobs)).where(jobs.c.open, free).order_by(*_TURN).limit(limit)


def engine_rows(now: ColumnElement[float]) -> Question:
    return select(engines.c.name, engines.c.url, engines.c.models, engines.c.expires_at - now).order_by(engines.c.name)


def to_engines(rows: Rows) -> list[EngineRow]:
    return [EngineRow(name, url, tuple(msgspec.json.decode(models)), left) for name, url, models, left in rows]


def inline_listing(now: ColumnElement[float], after: str, limit: int) -> Question:
    age = now - blobs.c.seen_at
    return select(blobs.c.digest, blobs.c.size, age).where(blobs.c.digest > after).order_by(blobs.c.digest).limit(limit)


def purging() -> Question:
    return select(streams.c.stream).where(streams.c.version < 0)


def appended_to(after: int, limit: int) -> Question:
    """What the newest events are, but for their bodies."""
    return (
        select(events.c.position, events.c.stream, events.c.type, events.c.epoch)
        .where(events.c.position > after)
        .order_by(events.c.position)
        .limit(limit)
    )


def last_position() -> Question:
    return select(func.coalesce(func.max(events.c.position), 0))


def open_jobs() -> Question:
    return select(func.count()).select_from(jobs).where(jobs.c.open)


def counts(nbytes: ColumnElement[int]) -> Question:
    """As StoreStatistics has them; `nbytes` is how the database says what it takes on disk."""

    def count(table: Table) -> ScalarSelect[int]:
        return select(func.count()).select_from(table).scalar_subquery()

    return select(
        count(streams),
        count(events),
        count(checkpoints),
        count(jobs),
        open_jobs().scalar_subquery(),
        count(blobs),
        select(func.coalesce(func.sum(blobs.c.size), 0)).scalar_subquery(),
        last_position().scalar_subquery(),
        nbytes,
    )


def to_jobs(rows: Rows) -> list[JobRow]:
    return [JobRow(*(*row[:-1], metadata_of(row[-1]))) for row in rows]


_TURN = (jobs.c.priority.desc(), jobs.c.submitted_at, jobs.c.id)
"""The order of work."""


def _conditions(where: JobFilter) -> Iterator[ColumnElement[bool]]:
    equal = {
        jobs.c.status: where.status, jobs.c.model: where.model, jobs.c.open: where.open, jobs.c.owner: where.owner
    }  # fmt: skip
    yield from (column == value for column, value in equal.items() if value is not None)
    if where.prefix is not None:
        yield _starts_with(jobs.c.id, where.prefix)
    if where.submitted_before is not None:
        yield jobs.c.submitted_at < where.submitted_before
    if where.updated_before is not None:
        yield jobs.c.updated_at < where.updated_before
    if where.updated_after is not None:
        yield jobs.c.updated_at > where.updated_after
    if where.attempts_from is not None:
        yield jobs.c.attempts >= where.attempts_from
    for key, value in where.metadata.items():
        yield case((READABLE, jobs.c.metadata[key].as_string() == value), else_=false())
    if where.unreadable:
        yield not_(READABLE)


def _starts_with(column: Column[str], prefix: str) -> ColumnElement[bool]:
    return and_(column >= prefix, column <= prefix + LAST_CHARACTER)


def _older_than(job: str) -> ColumnElement[bool]:
    mark = select(jobs.c.submitted_at, jobs.c.id).where(jobs.c.id == job)
    return tuple_(jobs.c.submitted_at, jobs.c.id) < mark.scalar_subquery()


def _in_turn_after(job: str) -> ColumnElement[bool]:
    mark = jobs.alias("mark")
    priority = select(mark.c.priority).where(mark.c.id == job).scalar_subquery()
    age = select(mark.c.submitted_at, mark.c.id).where(mark.c.id == job).scalar_subquery()
    return or_(
        jobs.c.priority < priority,
        and_(jobs.c.priority == priority, tuple_(jobs.c.submitted_at, jobs.c.id) > age),
    )
