"""What an operator does with a store: its leases, its schema, a question to it."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest

from ops.settings import Settings
from store.open import open_journal
from tests.ops.admin import NewSettings, admin, ended, engine, execute, settings_of
from tests.sim import request

# -- leases -------------------------------------------------------------------------------------------------------


async def test_leases_are_listed_with_what_they_hold_and_can_be_broken(new: NewSettings) -> None:
    shared = new("postgres", "shared")
    async with engine(shared, name="one") as running:
        running.workers[0].gate = anyio.Event()
        job = await running.client.submit(request())
        await running.until(lambda: job.id in running.engine.ledger.actors)
        await running.engine.ledger.settled()

        [lease] = (await admin(shared, "leases", "list", "--json")).json
        assert (lease["engine"], lease["url"], lease["jobs"]) == ("one", running.engine.settings.url, 1)
        assert lease["live"]
        assert 0 < lease["left_s"] <= 10
        running.workers[0].gate.set()

    assert (await admin(shared, "leases", "break", "one")).out.split()[-1] == "ended"
    wrong = await admin(shared, "leases", "break", "one")
    assert (wrong.code, wrong.err) == (1, "error: engine: 'one' has no lease; there are: none\n")


async def test_a_file_has_no_leases_and_that_is_said(new: NewSettings) -> None:
    alone = new("sqlite", "alone")
    async with engine(alone):
        listed = await admin(alone, "leases", "list", "--json")
        broken = await admin(alone, "leases", "break", "engine")

    assert (listed.json, broken.code) == ([], 1)
    assert listed.err.startswith("a SQLite store has no leases")
    assert broken.err.startswith("error: engine: a SQLite store has no leases")


# -- schema -------------------------------------------------------------------------------------------------------


async def test_an_upgrade_makes_the_job_list_anew(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parent.parent / "histories" / "schema-0001.db", tmp_path / "keyframe.db")
    old = settings_of(tmp_path)
    refused = await admin(old, "jobs", "list")
    assert refused.err.count("engine-admin db upgrade") == 1

    done = (await admin(old, "db", "upgrade", "--json")).json

    assert done["job_list_rebuilt"]
    assert (await admin(old, "db", "check", "--json")).json["problems"] == []
    again = (await admin(old, "db", "upgrade", "--json")).json
    assert (again["revision"], again["job_list_rebuilt"]) == (done["revision"], False)


async def test_a_damaged_list_is_mended_unless_an_engine_is_at_work(settings: Settings) -> None:
    async with engine(settings) as running:
        job = await ended(running)
    execute(settings, "DELETE FROM jobs")

    found = await admin(settings, "db", "check", "--json")

    assert (found.code, found.json["job_list_rebuilt"]) == (1, True)
    assert (await admin(settings, "db", "check")).code == 0
    assert [row["id"] for row in (await admin(settings, "jobs", "list", "--json")).json] == [job]


async def test_a_store_says_how_much_is_in_it(settings: Settings) -> None:
    async with engine(settings) as running:
        await ended(running)
        stats = (await admin(settings, "db", "stats", "--json")).json

    assert (stats["streams"], stats["jobs"], stats["open_jobs"], stats["checkpoints"]) == (1, 1, 0, 1)
    assert stats["nbytes"] > 0


# -- sql ----------------------------------------------------------------------------------------------------------


async def test_a_question_is_answered_as_a_table_or_as_json(settings: Settings) -> None:
    async with engine(settings) as running:
        job = await ended(running)
        rows = await admin(settings, "sql", "SELECT stream, hash, version FROM streams", "--json")
        told = await admin(settings, "sql", "SELECT type, count(*) n FROM events GROUP BY 1 ORDER BY 1", "--limit", 1)

    [row] = rows.json
    assert (row["stream"], len(row["hash"])) == (f"job/{job}", 64)
    assert told.out.split() == ["type", "n", "job_admitted", "1"]
    assert told.err == "there are more than 1 rows: give a higher --limit\n"


@pytest.mark.parametrize("statement", ["DELETE FROM events", "SELECT 1; SELECT 2", "nonsense"])
async def test_a_statement_that_is_no_question_exits_with_2(settings: Settings, statement: str) -> None:
    async with engine(settings):
        done = await admin(settings, "sql", statement)

    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith("error: statement: ")


async def test_a_question_has_a_time_limit(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "keyframe.db")):
        pass
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    (tmp_path / "keyframe.db").touch()

    done = await admin(settings_of(tmp_path), "sql", endless, "--timeout", "0.1s")

    assert done.err == "error: the statement took longer than 0.1 s: ask for less, or give it more time\n"


async def test_the_shortest_and_the_longest_time_are_times_to_postgres_too(new: NewSettings) -> None:
    shared = new("postgres", "shared")
    async with open_journal(shared.store_url):
        pass

    short = await admin(shared, "sql", "SELECT pg_sleep(600)", "--timeout", "0.0001s")
    long = await admin(shared, "sql", "SELECT 1", "--timeout", "36500d")

    assert (short.code, short.err.count("\n"), long.code) == (1, 1, 0)
    assert "took longer than 0.0001 s" in short.err
