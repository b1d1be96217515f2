"""The read model and the checkpoints against the log: both are derived, so both must come out the same again."""

from collections.abc import AsyncIterator, Iterator

import msgspec
from msgspec import Struct

from engine import events as facts
from engine.actor import replay, restore
from engine.errors import HistoryError
from engine.events import JobEvent
from engine.job import Job, fold
from engine.views import listed, row
from store.journal import ALL_JOBS, Event, JobFilter, JobRow, Journal, Loaded

PAGE = 1000


class Report(Struct, frozen=True):
    """What a check found. `rows` is the read model as the log has it."""

    streams: int
    events: int
    problems: tuple[str, ...]
    rows: tuple[JobRow, ...]


async def check(journal: Journal) -> Report:
    """Fold every job's log and compare: versions without gaps, the head, the checkpoint, the row of the job list.

    An engine may be at work meanwhile: what it changes under our eyes is no problem.
    """
    problems: list[str] = []
    derived: dict[str, JobRow | None] = {}
    count = 0
    before = await _listed(journal)
    async for stream in _streams(journal):
        events, loaded = await at_rest(journal, stream)
        count += len(events)
        derived[stream.removeprefix("job/")], found = _check_stream(stream, events, loaded)
        problems += found
    problems += _row_problems(before, derived, await _listed(journal))
    rows = (ours or before.get(job) for job, ours in derived.items())  # a log that cannot be read keeps its row
    return Report(len(derived), count, tuple(problems), tuple(filter(None, rows)))


async def history(journal: Journal, stream: str, after: int = 0) -> AsyncIterator[Event]:
    """All events of a stream with a position greater than `after`, page by page."""
    while page := await journal.read(stream, after=after, limit=PAGE):
        for event in page:
            yield event
        after = page[-1].position


async def rows(journal: Journal, where: JobFilter) -> AsyncIterator[JobRow]:
    """All rows of the job list that a filter finds, page by page."""
    after = None
    while page := await journal.jobs(where, after=after, limit=PAGE):
        for one in page:
            yield one
        after = page[-1].id


async def at_rest(journal: Journal, stream: str) -> tuple[list[Event], Loaded | None]:
    """A stream's events and its head as they were at one moment: nothing was appended between the two looks."""
    events = [event async for event in history(journal, stream)]
    while True:
        loaded = await journal.load(stream)
        later = [event async for event in history(journal, stream, after=events[-1].position if events else 0)]
        if not later:
            return events, loaded
        events += later


def _check_stream(stream: str, events: list[Event], loaded: Loaded | None) -> tuple[JobRow | None, list[str]]:
    if not events:
        return None, [f"{stream}: has a head and no events"]
    problems = []
    if [event.version for event in events] != list(range(1, len(events) + 1)):
        problems.append(f"{stream}: versions have gaps")
    try:
        derived = _derived_row(events)
        if loaded is None or loaded.version != len(events):
            problems.append(f"{stream}: the head is not at the last event")
        elif restore(loaded).job != replay([facts.decode(event) for event in events]):
            problems.append(f"{stream}: the checkpoint is not what the log folds to")
    except (HistoryError, msgspec.DecodeError) as error:
        return None, [*problems, f"{stream}: {error}"]
    return derived, problems


def _row_problems(
    before: dict[str, JobRow], derived: dict[str, JobRow | None], after: dict[str, JobRow]
) -> Iterator[str]:
    """A row and what it is derived from are one append: one that stayed the same all the while must be what we saw."""
    for job, ours in derived.items():
        if ours is not None and before.get(job) == after.get(job) != ours:
            yield f"job/{job}: the job list says something else than the log"
    for job in before.keys() - derived.keys():
        yield f"job/{job}: is in the job list and has no log"


def _derived_row(events: list[Event]) -> JobRow:
    """The row as the appends wrote it: its time is that of the last change of what is listed."""
    job: Job | None = None
    changed_at = 0.0
    for event in events:
        before = listed(job) if job else None
        fact: JobEvent = facts.decode(event)
        job = fold(job, fact)
        if listed(job) != before:
            changed_at = event.at
    assert job is not None, "a stream has events"
    return row(job, changed_at)


async def _streams(journal: Journal) -> AsyncIterator[str]:
    after = ""
    while page := await journal.streams("job/", after=after, limit=PAGE):
        for stream in page:
            yield stream
        after = page[-1]


async def _listed(journal: Journal) -> dict[str, JobRow]:
    return {row.id: row async for row in rows(journal, ALL_JOBS)}
