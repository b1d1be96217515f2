"""What every journal promises of chains: an event that is changed, missing or moved is found."""

import re

import pytest

from store.chain import broken
from store.journal import (
    Journal,
)
from tests.contracts.journals import ON_SQL, change, whole_log, write


async def test_every_event_is_chained_to_the_one_before_it(journal: Journal) -> None:
    pending = [journal.append(write("a", 0, b"1", b"2")), journal.append(write("b", 0, b"x"))]
    pending += [journal.append(write("a", 2, b"3", claim=True)), journal.append(write("a", 3, b"4", epoch=1))]
    for append in pending:
        await append

    for stream in ("a", "b"):
        assert broken(await journal.read(stream), await journal.load(stream)) is None
    assert len({event.hash for event in await whole_log(journal)}) == 5


@ON_SQL
@pytest.mark.parametrize(
    ("damage", "found"),
    [
        ("UPDATE events SET body = hash WHERE version = 2", "event 2 .* is not what was written"),
        ("UPDATE events SET at = 9 WHERE version = 3", "event 3 .* is not what was written"),
        ("DELETE FROM events WHERE version = 2", "event 2 is missing"),
        ("DELETE FROM events WHERE version = 3", "ends at event 2, its head says 3"),
        ("UPDATE events SET version = 4 - version WHERE version <> 2", "event 1 .* is not what was written"),
        ("UPDATE streams SET version = 4", "ends at event 3, its head says 4"),
        ("UPDATE events SET position = position + 10 WHERE version = 2", "event 3 is out of order"),
    ],
)
async def test_a_changed_missing_or_moved_row_breaks_the_chain(
    journal: Journal, url: str, damage: str, found: str
) -> None:
    await journal.append(write("a", 0, b"1", b"2", b"3"))

    change(url, damage if "4 - version" not in damage else "UPDATE events SET version = version + 10")
    if "4 - version" in damage:
        change(url, "UPDATE events SET version = 14 - version WHERE version <> 12")
        change(url, "UPDATE events SET version = 2 WHERE version = 12")

    problem = broken(await journal.read("a"), await journal.load("a"))
    assert problem is not None
    assert re.search(found, problem)
