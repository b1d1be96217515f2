"""Any history that one journal takes, the other takes with the same answers."""

import itertools
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.errors import StoreError
from store.journal import Append, Appended, IdempotencyKey, JobFilter, JobRow, Journal, NewEvent
from store.open import open_journal

STREAMS = ("a", "b")

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=3)

JOBS = st.builds(
    JobRow,
    id=st.sampled_from(STREAMS),
    status=TEXT,
    model=TEXT,
    priority=st.integers(-1, 1),
    submitted_at=st.sampled_from([0.0, 1.0]),
    updated_at=st.floats(allow_nan=False),
    open=st.booleans(),
)

# Mostly what a stream would take, so that histories get somewhere.
APPENDS = st.builds(
    Append,
    stream=st.sampled_from(STREAMS),
    expected=st.integers(0, 2),
    epoch=st.sampled_from([0, 0, 1]),
    at=st.floats(allow_nan=False),
    events=st.lists(st.builds(NewEvent, TEXT, st.binary(max_size=3)), max_size=2).map(tuple),
    claim=st.sampled_from([False, False, True]),
    checkpoint=st.none() | st.binary(max_size=3),
    row=st.none() | JOBS,
    key=st.none() | st.builds(IdempotencyKey, st.sampled_from(["k", "l"]), TEXT),
)


@settings(max_examples=25, deadline=None)
@given(history=st.lists(APPENDS, min_size=1, max_size=20))
def test_sqlite_answers_as_memory_does(tmp_path_factory: pytest.TempPathFactory, history: list[Append]) -> None:
    folder: Path = tmp_path_factory.mktemp("history")

    assert anyio.run(ending, f"sqlite:///{folder}/store.db", history) == anyio.run(ending, "memory://", history)


async def ending(url: str, history: list[Append]) -> list[Any]:
    """All that can be asked after a history, the answers on the way included."""
    async with open_journal(url) as journal:
        pending = [journal.append(append) for append in history]
        answers = [await answer_of(append) for append in pending]
        return [answers, *(await everything(journal))]


async def answer_of(pending: Any) -> Appended | str:
    try:
        appended: Appended = await pending
    except StoreError as error:
        return repr(error)
    return appended


async def everything(journal: Journal) -> list[Any]:
    filters = itertools.product([None, True, False], [None, *STREAMS])
    return [
        await journal.load_many(STREAMS),
        await journal.streams(""),
        await journal.read_all(),
        [await journal.read(stream, after=1) for stream in STREAMS],
        [await journal.jobs(JobFilter(open=open), after=after) for open, after in filters],
        [await journal.job_of_key(key) for key in ("k", "l")],
    ]
