"""What a person may type, and what a store may hold after somebody was at it: one line, and nothing else happens."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import anyio
import pytest

from store.open import open_journal
from tests.processes import run
from tests.sim import World, request


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A store with a job that is done and one that waits."""

    async def fill() -> None:
        async with open_journal(f"sqlite:///{tmp_path}/keyframe.db") as journal:
            async with World(journal).engine() as running:
                await running.ended((await running.client.submit(request())).id)
            async with World(journal).engine(workers=0) as idle:
                idle.client._ids = lambda: "job-0002"
                await idle.client.submit(request())
                await idle.client.verbs.pause("job-0002")

    anyio.run(fill)
    return tmp_path


def admin(*arguments: object, data: Path) -> "CompletedProcess[str]":
    return run("engine-admin", *arguments, data=data)


@pytest.mark.parametrize("name", ["job-0002/cancel?", "../jobs/job-0002", "job-0002#", "job%2d0002", "", ".", "é"])
def test_an_id_is_only_a_name(data: Path, name: str) -> None:
    done = admin("jobs", "resume", name, data=data)

    assert done.returncode == 1
    assert "no job" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    shown = json.loads(admin("jobs", "show", "job-0002", "--json", data=data).stdout)
    assert shown["status"] == "paused"


@pytest.mark.parametrize("change", ["body = 'text'", "at = 'abc'", "version = 'x'"])
def test_a_column_of_another_type_is_a_change_like_any_other(data: Path, change: str) -> None:
    with sqlite3.connect(data / "keyframe.db") as connection:
        connection.execute(f"UPDATE events SET {change} WHERE stream = 'job/job-0001' AND version = 3")

    verified = admin("log", "verify", data=data)

    assert verified.returncode == 1
    assert "Traceback" not in verified.stderr
    assert "job/job-0001" in verified.stdout


def test_a_broken_log_is_not_exported(data: Path) -> None:
    with sqlite3.connect(data / "keyframe.db") as connection:
        connection.execute("DELETE FROM events WHERE stream = 'job/job-0001' AND version = 5")

    exported = admin("jobs", "export", "job-0001", "-o", data / "job.tar", data=data)

    assert exported.returncode == 1
    assert "event 5 is missing" in exported.stderr
    assert not list(data.glob("*job.tar*"))


def test_a_step_that_is_not_there_is_not_verified_from(data: Path) -> None:
    done = admin("replay", "verify", "job-0001", "--from-step", 1000, data=data)

    assert done.returncode == 1
    assert "1000" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", ["-1", "99999999999999999999999", "x", "²"])
def test_a_number_that_is_none_is_refused_at_once(data: Path, number: str) -> None:
    done = admin("jobs", "list", "--limit", number, data=data)

    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_columns_of_one_name_are_all_there(data: Path) -> None:
    done = admin("sql", "SELECT 1 AS a, 2 AS a, 3 AS b", "--json", data=data)

    assert json.loads(done.stdout) == [{"a": 1, "a:2": 2, "b": 3}]


@pytest.mark.parametrize(
    "write", ["SELECT nextval(pg_get_serial_sequence('events', 'position'))", "SELECT lo_create(0)"]
)
def test_a_select_that_writes_is_a_line(data: Path, new_database: Callable[[], str], write: str) -> None:
    url = new_database()
    assert run("engine-admin", "db", "upgrade", data=data, store=url).returncode == 0

    done = run("engine-admin", "sql", write, data=data, store=url)

    assert done.returncode == 2
    assert "only reading is allowed" in done.stderr
    assert len(done.stderr.splitlines()) == 1
