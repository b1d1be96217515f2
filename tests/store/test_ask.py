"""What a person may ask a store in SQL: anything that only reads."""

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.clock import WallClock
from store.ask import Answered, ask
from store.errors import BadQuestion, QuestionTooLong, StoreUnavailable
from store.journal import Append, NewEvent
from store.open import open_journal

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


@pytest.fixture(params=["sqlite", "postgres"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    url: str = f"sqlite:///{tmp_path}/store.db"
    if request.param == "postgres":
        new_database: Callable[[], str] = request.getfixturevalue("new_database")
        url = new_database()
    async with open_journal(url) as journal:
        events = tuple(NewEvent("happened", b"%d" % n) for n in range(5))
        await journal.append(Append(stream="job/a", expected=0, epoch=0, at=1.0, events=events))
    return url


def answered(url: str, sql: str, limit: int = 100, timeout_s: float = 30.0) -> Answered:
    return ask(url, sql, limit=limit, timeout_s=timeout_s, monotonic=WallClock().monotonic)


def asked(url: str, sql: str, limit: int = 100, timeout_s: float = 30.0) -> list[tuple[object, ...]]:
    return answered(url, sql, limit, timeout_s).rows


async def test_a_question_is_answered_with_its_columns(url: str) -> None:
    sql = "SELECT version, type AS what FROM events WHERE type LIKE 'hap%' ORDER BY 1"

    assert answered(url, sql, limit=3) == Answered(
        ("version", "what"), [(1, "happened"), (2, "happened"), (3, "happened")], more=True
    )
    assert not answered(url, sql, limit=5).more


async def test_no_rows_have_columns_too(url: str) -> None:
    assert answered(url, "SELECT stream FROM streams WHERE stream = 'none'") == Answered(("stream",), [], more=False)


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM events",
        "UPDATE streams SET version = 0",
        "INSERT INTO compatibility VALUES ('x')",
        "DROP TABLE events",
        "CREATE TABLE mine (x INTEGER)",
        "VACUUM INTO '{folder}/copy.db'",
        "ATTACH DATABASE '{folder}/copy.db' AS other",
        "COPY events TO '{folder}/copy.db'",
        "PRAGMA user_version = 7",
        "SELECT 1; DELETE FROM events",
        "COMMIT; DELETE FROM events",
        "WITH gone AS (DELETE FROM events RETURNING 1) SELECT * FROM gone",
        "SELECT FROM WHERE",
        "nonsense",
    ],
)
async def test_what_is_no_question_is_refused_and_changes_nothing(url: str, sql: str, tmp_path: Path) -> None:
    with pytest.raises(BadQuestion) as refused:
        asked(url, sql.format(folder=tmp_path))

    assert "\n" not in str(refused.value)
    assert asked(url, "SELECT count(*) FROM events") == [(5,)]
    assert not (tmp_path / "copy.db").exists()


async def test_reading_and_several_statements_have_their_own_words(url: str) -> None:
    with pytest.raises(BadQuestion, match="one at a time"):
        asked(url, "SELECT 1; SELECT 2")
    with pytest.raises(BadQuestion, match="only reading is allowed"):
        asked(url, "DELETE FROM events")


async def test_an_endless_statement_is_ended(url: str) -> None:
    with pytest.raises(QuestionTooLong, match=r"longer than 0.1 s: ask for less"):
        asked(url, ENDLESS, timeout_s=0.1)


async def test_a_question_beside_a_writer_keeps_nobody_waiting(url: str) -> None:
    async with open_journal(url) as journal:
        assert asked(url, "SELECT count(*) FROM events") == [(5,)]
        await journal.append(Append(stream="job/b", expected=0, epoch=0, at=1.0, events=(NewEvent("x", b""),)))
        assert asked(url, "SELECT count(*) FROM events") == [(6,)]


async def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="there is no store"):
        asked(f"sqlite:///{tmp_path}/none.db", "SELECT 1")

    assert list(tmp_path.iterdir()) == []
