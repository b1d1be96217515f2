"""Jobs that are moved between stores while they run, with real processes; bundles and collecting by command."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.processes import EngineProcess, engine, run, until

SLOW = "a count sleep=0.02 big=70000"
STEPS = 150


def admin(*arguments: object, data: Path, store: str | None, code: int = 0) -> Any:
    where = {"data": data} | ({"store": store} if store else {})
    done = run("engine-admin", *arguments, "--json", **where)
    assert done.returncode == code, done.stderr + done.stdout
    return json.loads(done.stdout) if done.stdout else done.stderr


def place(kind: str, folder: Path, new_database: Callable[[], str]) -> tuple[Path, str | None]:
    return folder, new_database() if kind == "postgres" else None


def serving(data: Path, store: str | None) -> Any:
    return engine(data, **({"store": store} if store else {}))


def under_way(running: EngineProcess, job: str) -> None:
    until(lambda: len(running.steps(job)) > 8, "some steps")


@pytest.mark.slow
@pytest.mark.parametrize(("source", "target"), [("sqlite", "postgres"), ("postgres", "sqlite")])
def test_a_running_job_moves_between_databases_and_ends_with_the_bits_of_one_that_stayed(
    tmp_path: Path, new_database: Callable[[], str], source: str, target: str
) -> None:
    here = place(source, tmp_path / "here", new_database)
    there = place(target, tmp_path / "there", new_database)
    with serving(*here) as first, serving(*there) as second:
        stayed = first.submit(SLOW, steps=STEPS)
        job = first.submit(SLOW, steps=STEPS)
        under_way(first, job)

        written = admin("jobs", "export", job, "-o", tmp_path / "job.tar", "--move", data=here[0], store=here[1])
        taken = admin("jobs", "import", tmp_path / "job.tar", data=there[0], store=there[1])
        again = admin("jobs", "import", tmp_path / "job.tar", data=there[0], store=there[1], code=1)

        assert taken == {"job": job, "status": "queued"}
        assert "is in this store already" in again
        assert first.job(job)["status"] == "moved"
        assert second.ended(job)["status"] == first.ended(stayed)["status"] == "completed"
        assert second.checkpoints(job) == first.checkpoints(stayed)
        done_before = written["version"] - 5
        assert 8 < done_before < STEPS, "it was under way"
        admin("log", "verify", job, data=there[0], store=there[1])
        admin("db", "check", data=there[0], store=there[1])
        assert admin("replay", "verify", job, data=there[0], store=there[1])["equal"]


@pytest.mark.slow
def test_a_paused_job_moves_and_stays_paused_and_a_copy_leaves_the_original_alone(
    tmp_path: Path, new_database: Callable[[], str]
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    with engine(here) as first:
        job = first.submit("a count sleep=0.1 big=70000", steps=150)
        under_way(first, job)
        copied = admin("jobs", "export", job, "-o", tmp_path / "copy.tar", data=here, store=None)
        assert first.job(job)["status"] == "running"
        admin("jobs", "pause", job, data=here, store=None)
        admin("jobs", "export", job, "-o", tmp_path / "job.tar", "--move", data=here, store=None)
        (tmp_path / "job.tar").rename(tmp_path / ".job.tar.moving")  # as if it had been killed just before the name
        admin("jobs", "export", job, "-o", tmp_path / "job.tar", "--move", data=here, store=None)
        assert "has moved already" in admin(
            "jobs", "export", job, "-o", tmp_path / "other.tar", "--move", data=here, store=None, code=1
        )
    assert copied["moved"] is False

    taken = admin("jobs", "import", tmp_path / "job.tar", data=there, store=None)  # no engine is up there, and no store

    assert taken["status"] == "paused"
    with engine(there) as second:
        admin("jobs", "resume", job, data=there, store=None)
        assert second.ended(job)["status"] == "completed"
    corpus = admin("replay", "verify", "--corpus", tmp_path, data=there, store=None)
    assert [one["equal"] for one in corpus] == [True, True]


def test_what_cannot_be_exported_or_taken_in_is_one_line(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (tmp_path / "x.tar").write_bytes(b"not a bundle" * 1000)

    for arguments, line in (
        (("jobs", "import", tmp_path / "nowhere.tar"), "file: there is no file"),
        (("jobs", "import", tmp_path / "x.tar"), "is no bundle"),
        (("jobs", "export", "nobody", "-o", tmp_path / "nobody.tar"), "no job 'nobody'"),
        (("jobs", "export", "nobody", "-o", tmp_path / "no" / "folder.tar"), "out: there is no folder"),
        (("replay", "verify", "--corpus", data), "corpus: there is no bundle"),
    ):
        done = run("engine-admin", *arguments, data=data)
        assert done.returncode in (1, 2)
        assert line in done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.slow
def test_a_plan_counts_what_a_run_then_forgets_beside_a_live_engine(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with engine(data, gc_every_s=0, keep_steps_s=0, purge_over=1) as running:
        jobs = [running.submit("a count big=70000", steps=4) for _ in range(3)]
        for job in jobs:
            running.ended(job)

        plan = admin("gc", "plan", data=data, store=None)
        assert len(plan["purged"]) == 2
        assert {row["id"] for row in admin("jobs", "list", data=data, store=None)} == set(jobs)
        ran = admin("gc", "run", data=data, store=None)

        assert ran["purged"] == plan["purged"]
        assert {row["id"] for row in admin("jobs", "list", data=data, store=None)} == set(jobs) - set(ran["purged"])
        assert (ran["inline_blobs"], ran["stored_blobs"]) == (0, 0), "what is young stays, whoever names it"
