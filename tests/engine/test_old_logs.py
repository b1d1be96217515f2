"""What old releases wrote still folds."""

from itertools import groupby
from pathlib import Path

import msgspec
import pytest

from engine import events as facts
from engine.actor import replay
from engine.errors import UnknownEvent, UnreadableBody
from engine.events import EVENT_TYPES, JobFailed
from engine.upcast import Body
from store.journal import Event
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


OLD = Event(1, "job/a", 1, 0, "went_wrong", 0.0, msgspec.msgpack.encode({"type": "went_wrong", "why": "oom", "at": 3}))


def test_an_event_of_an_old_meaning_is_read_in_todays_words() -> None:
    def first(body: Body) -> tuple[str, Body]:
        return "went_wrong/2", {"kind": body["why"], "step": body["at"]}

    def second(body: Body) -> tuple[str, Body]:
        return "job_failed", body | {"message": f"at step {body['step']}", "node": "count", "attempt": 1}

    read = facts.decode(OLD, {"went_wrong": first, "went_wrong/2": second})

    assert read == JobFailed(kind="oom", message="at step 3", node="count", step=3, attempt=1)


def test_an_old_event_that_is_brought_up_wrongly_is_named() -> None:
    with pytest.raises(UnreadableBody, match=r"event 1 \(went_wrong\)"):
        facts.decode(OLD, {"went_wrong": lambda body: ("job_failed", body)})
    with pytest.raises(UnknownEvent, match="went_wrong"):
        facts.decode(OLD)
