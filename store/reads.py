"""The questions that the journal is asked, one statement each, and the Structs that come back."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Row, Select, and_, func, or_, select, tuple_

from store.journal import Checkpoint, Event, JobRow, Loaded
from store.schema import blobs, checkpoints, events, idempotency, jobs, streams

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
            checkpoints.c.version,
            checkpoints.c.body,
            *events.c,
        )
        .outerjoin_from(streams, checkpoints, checkpoints.c.stream == streams.c.stream)
        .outerjoin(
            events,
            and_(events.c.stream == streams.c.stream, events.c.version > func.coalesce(checkpoints.c.version, 0)),
        )
        .where(streams.c.stream.in_(names))
        .order_by(streams.c.stream, events.c.version)
    )


def to_loaded(rows: Rows) -> dict[str, Loaded]:
    return {stream: _one_loaded(list(of_stream)) for stream, of_stream in groupby(rows, key=lambda row: row[0])}


def _one_loaded(rows: Rows) -> Loaded:
    _, version, epoch, saved_at, saved, *_ = rows[0]
    return Loaded(
        version=version,
        epoch=epoch,
        checkpoint=None if saved_at is None else Checkpoint(version=saved_at, body=saved),
        events=tuple(Event(*row[5:]) for row in rows if row[5] is not None),
    )


def events_of(stream: str, after: int, limit: int) -> Question:
    return (
        select(events)
        .where(events.c.stream == stream, events.c.position > after)
        .order_by(events.c.position)
        .limit(limit)
    )


def events_of_all(after: int, limit: int) -> Question:
    return select(events).where(events.c.position > after).order_by(events.c.position).limit(limit)


def to_events(rows: Rows) -> list[Event]:
    return [Event(*row) for row in rows]


def names(prefix: str, after: str, limit: int) -> Question:
    return (
        select(streams.c.stream)
        .where(streams.c.stream >= prefix, streams.c.stream <= prefix + LAST_CHARACTER, streams.c.stream > after)
        .order_by(streams.c.stream)
        .limit(limit)
    )


def inline_blobs(digests: Sequence[str]) -> Question:
    return select(blobs.c.digest, blobs.c.data).where(blobs.c.digest.in_(digests))


def key(name: str) -> Question:
    return select(idempotency.c.stream, idempotency.c.fingerprint).where(idempotency.c.key == name)


def job_rows(status: str | None, model: str | None, open: bool | None, after: str | None, limit: int) -> Question:
    wanted = {jobs.c.status: status, jobs.c.model: model, jobs.c.open: open}
    question = select(jobs).where(*(column == value for column, value in wanted.items() if value is not None))
    if after is not None:
        question = question.where(_in_turn_after(after) if open else _older_than(after))
    if open:
        return question.order_by(jobs.c.priority.desc(), jobs.c.submitted_at, jobs.c.id).limit(limit)
    return question.order_by(jobs.c.submitted_at.desc(), jobs.c.id.desc()).limit(limit)


def to_jobs(rows: Rows) -> list[JobRow]:
    return [JobRow(*row) for row in rows]


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
