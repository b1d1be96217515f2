"""What old releases wrote still folds."""

from itertools import groupby
from pathlib import Path

import pytest

from engine import events as facts
from engine.actor import replay
from engine.events import EVENT_TYPES
from tests.history import FOLDER, read

HISTORIES = sorted(FOLDER.glob("*.jsonl"))


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_an_old_log_still_folds(path: Path) -> None:
    by_stream = groupby(sorted(read(path), key=lambda event: event.stream), key=lambda event: event.stream)
    jobs = [replay([facts.decode(event) for event in events]) for _, events in by_stream]

    assert {job.state for job in jobs} == {"completed", "failed", "cancelled"}
    assert all(job.terminal for job in jobs)


def test_there_is_a_log_of_every_event_but_those_of_two_stores() -> None:
    seen = {event.type for path in HISTORIES for event in read(path)}

    assert set(EVENT_TYPES) - seen <= {"job_imported", "job_moved_away"}
