"""The read model and the checkpoints against the log: both are derived, so both must come out the same again."""

from collections.abc import AsyncIterator

from msgspec import Struct

from engine import events as facts
from engine.actor import replay, restore
from engine.errors import HistoryError
from engine.events import JobEvent
from engine.job import Job, fold
from engine.views import row
from store.journal import Event, JobRow, Journal

PAGE = 1000


class Report(Struct, frozen=True):
    """What a check found. `rows` is the read model as the log has it."""

    streams: int
    events: int
    problems: tuple[str, ...]
    rows: tuple[JobRow, ...]


async def check(journal: Journal) -> Report:
    """Fold every job's log and compare: versions without gaps, the head, the checkpoint, the row of the job list."""
    problems: list[str] = []
    rows: list[JobRow] = []
    listed = {item.id: item async for item in _rows(journal)}
    streams = count = 0
    async for stream in _streams(journal):
        streams += 1
        events = [event async for event in history(journal, stream)]
        count += len(events)
        derived, found = await _check_stream(journal, stream, events)
        problems += found
        if derived is not None:
            rows.append(derived)
            if listed.pop(derived.id, None) != derived:
                problems.append(f"{stream}: the job list says something else than the log")
    problems += [f"job/{job}: is in the job list and has no log" for job in listed]
    return Report(streams, count, tuple(problems), tuple(rows))


async def history(journal: Journal, stream: str) -> AsyncIterator[Event]:
    """All events of a stream, page by page."""
    after = 0
    while page := await journal.read(stream, after=after, limit=PAGE):
        for event in page:
            yield event
        after = page[-1].position


async def _check_stream(journal: Journal, stream: str, events: list[Event]) -> tuple[JobRow | None, list[str]]:
    problems = []
    if [event.version for event in events] != list(range(1, len(events) + 1)):
        problems.append(f"{stream}: versions have gaps")
    try:
        derived = _derived_row(events)
        loaded = await journal.load(stream)
        if loaded is None or loaded.version != len(events):
            problems.append(f"{stream}: the head is not at the last event")
        elif restore(loaded).job != replay([facts.decode(event) for event in events]):
            problems.append(f"{stream}: the checkpoint is not what the log folds to")
    except HistoryError as error:
        return None, [*problems, f"{stream}: {error}"]
    return derived, problems


def _derived_row(events: list[Event]) -> JobRow:
    """The row as the appends wrote it: its time is that of the last change of state."""
    job: Job | None = None
    changed_at = 0.0
    for event in events:
        before = job.state if job else None
        fact: JobEvent = facts.decode(event)
        job = fold(job, fact)
        if job.state != before:
            changed_at = event.at
    assert job is not None, "a stream has events"
    return row(job, changed_at)


async def _streams(journal: Journal) -> AsyncIterator[str]:
    after = ""
    while page := await journal.streams("job/", after=after, limit=PAGE):
        for stream in page:
            yield stream
        after = page[-1]


async def _rows(journal: Journal) -> AsyncIterator[JobRow]:
    after = None
    while page := await journal.jobs(after=after, limit=PAGE):
        for item in page:
            yield item
        after = page[-1].id
