"""What a check finds wrong in a store, and what it mends."""

import sqlite3
from collections.abc import Awaitable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from engine.actor import Saved
from engine.check import Report, check
from store.journal import Append, Appended, JobRow, Loaded
from store.memory import MemoryJournal
from store.open import open_journal
from tests.sim import World, request


@pytest.fixture
async def database(tmp_path: Path) -> Path:
    """A store with two jobs: one that ended and one that waits."""
    path = tmp_path / "keyframe.db"
    async with open_journal(f"sqlite:///{path}") as journal:
        async with World(journal).engine() as running:
            first = await running.client.submit(request(steps=2))
            await running.ended(first.id)
        async with World(journal).engine(workers=0) as running:
            running.client._ids = lambda: "job-0002"
            await running.client.submit(request(seed=8))
            await running.until(lambda: "job-0002" in running.engine.ledger.actors)
            await running.engine.ledger.settled()
    return path


@contextmanager
def sql(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as connection:
        yield connection
        connection.commit()


async def checked(path: Path) -> Report:
    async with open_journal(f"sqlite:///{path}", writable=False) as journal:
        return await check(journal)


async def test_a_sound_store_has_no_problems(database: Path) -> None:
    report = await checked(database)

    assert report.problems == ()
    assert report.streams == 2
    assert {row.id: row.status for row in report.rows} == {"job-0001": "completed", "job-0002": "running"}
    with sql(database) as connection:
        assert report.events == connection.execute("SELECT count(*) FROM events").fetchone()[0]


LIST, LOG = "job/job-0001: the job list says something else than the log", "job/job-0001: "
FIRST = "WHERE stream = 'job/job-0001'"


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("UPDATE jobs SET status = 'failed' WHERE id = 'job-0001'", LIST),
        ("UPDATE jobs SET open = 1 WHERE id = 'job-0001'", LIST),
        ("UPDATE jobs SET updated_at = 1 WHERE id = 'job-0001'", LIST),
        ("DELETE FROM jobs WHERE id = 'job-0001'", LIST),
        (
            "INSERT INTO jobs SELECT 'extra', status, model, 0, 1, 1, open, owner, 1, metadata FROM jobs LIMIT 1",
            "job/extra: is in the job list and has no log",
        ),
        (f"UPDATE streams SET version = version + 1 {FIRST}", LOG + "the head is not at the last event"),
        (f"UPDATE streams SET version = version - 1 {FIRST}", LOG + "the head is not at the last event"),
        (f"UPDATE events SET version = 99 {FIRST} AND type = 'job_completed'", LOG + "versions have gaps"),
        (f"DELETE FROM events {FIRST} AND version = 4", LOG + "versions have gaps"),
        (f"DELETE FROM events {FIRST} AND version = 1", LOG + "a job that is not submitted cannot have"),
        (f"DELETE FROM events {FIRST}", LOG + "has a head and no events"),
        (f"UPDATE events SET type = 'made_up' {FIRST} AND version = 2", LOG + "unknown event 'made_up'"),
        (f"UPDATE events SET type = 'job_failed' {FIRST} AND version = 2", LOG),
        (f"UPDATE events SET body = x'c1' {FIRST} AND version = 2", LOG),
        (f"UPDATE checkpoints SET body = x'c1' {FIRST}", LOG),
    ],
)
async def test_damage_is_found_and_named(database: Path, damage: str, problem: str) -> None:
    with sql(database) as connection:
        assert connection.execute(damage).rowcount >= 1

    report = await checked(database)

    assert any(found.startswith(problem) for found in report.problems), report.problems
    assert not any("job-0002" in found for found in report.problems)
    assert not any("no log" in found for found in report.problems if "extra" not in found)


@pytest.mark.parametrize("change", [{"attempt": 9}, {"exact": False}, {"outputs": {}}])
async def test_a_checkpoint_that_is_not_what_the_log_folds_to_is_found(database: Path, change: dict[str, Any]) -> None:
    with sql(database) as connection:
        rows = connection.execute(f"SELECT version, body FROM checkpoints {FIRST}").fetchall()
        for version, body in rows:
            saved = msgspec.msgpack.decode(body, type=Saved)
            changed = msgspec.msgpack.encode(Saved(replace(saved.job, **change), saved.state))
            connection.execute(f"UPDATE checkpoints SET body = ? {FIRST} AND version = ?", [changed, version])

    assert (await checked(database)).problems == ("job/job-0001: the checkpoint is not what the log folds to",)


@pytest.mark.parametrize("damage", ["UPDATE jobs SET status = 'queued', open = 1", "DELETE FROM jobs"])
async def test_the_job_list_is_made_anew_from_the_log(database: Path, damage: str) -> None:
    with sql(database) as connection:
        before = sorted(connection.execute("SELECT * FROM jobs"))
        connection.execute(damage)

    async with open_journal(f"sqlite:///{database}") as journal:
        await journal.replace_rows((await check(journal)).rows)

    assert (await checked(database)).problems == ()
    with sql(database) as connection:
        assert sorted(connection.execute("SELECT * FROM jobs")) == before


# -- beside a live engine ---------------------------------------------------------------------------------------


class LiveJournal(MemoryJournal):
    """A journal to which an engine appends between two looks of the check: around lists, and before the first load."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Append] = []
        self._loaded = False

    async def load(self, stream: str) -> Loaded | None:
        if not self._loaded:
            self._go_on()
        self._loaded = True
        return await super().load(stream)

    async def jobs(self, *asked: Any, **wishes: Any) -> list[JobRow]:
        self._go_on()
        rows = await super().jobs(*asked, **wishes)
        self._go_on()
        return rows

    def _go_on(self) -> None:
        if self.waiting:
            self.append(self.waiting.pop(0))


class RecordingJournal(MemoryJournal):
    """Keeps what was appended, to be appended again elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.appends: list[Append] = []

    def append(self, append: Append) -> Awaitable[Appended]:
        self.appends.append(append)
        return super().append(append)


async def test_what_a_live_engine_does_meanwhile_is_no_problem() -> None:
    recorded = RecordingJournal()
    async with World(recorded).engine() as running:
        await running.ended((await running.client.submit(request(steps=12))).id)

    for done in range(len(recorded.appends)):
        journal = LiveJournal()
        for append in recorded.appends[:done]:
            await journal.append(append)
        journal.waiting = list(recorded.appends[done:])

        assert (await check(journal)).problems == (), f"with {done} appends before the check"


async def test_an_empty_store_is_sound() -> None:
    assert await check(MemoryJournal()) == Report(0, 0, (), ())
