"""Looking at jobs and changing them, with a live engine and without one, on either kind of store."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from engine.job import State
from ops.settings import Settings
from store.open import open_journal
from tests.ops.admin import admin, engine, settings_of
from tests.processes import engine as engine_process
from tests.processes import run, until
from tests.sim import Running, request


@pytest.fixture(params=["sqlite", "postgres"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    if request.param == "sqlite":
        return settings_of(tmp_path)
    new_database: Callable[[], str] = request.getfixturevalue("new_database")
    return settings_of(tmp_path, new_database())


async def submit(running: Running, seed: int = 7, **fields: Any) -> str:
    return (await running.client.submit(request(seed=seed, **fields))).id


async def ended(running: Running, seed: int = 7, **fields: Any) -> str:
    return (await running.ended(await submit(running, seed, **fields))).id


# -- looking ------------------------------------------------------------------------------------------------------


async def test_jobs_are_listed_by_what_is_known_of_them(settings: Settings) -> None:
    async with engine(settings) as running:
        ada = await ended(running, 1, metadata={"user": "ada"})
        bob = await ended(running, 2, prompt="a count fail=2", metadata={"user": "bob"})

        async def found(*flags: object) -> list[str]:
            done = await admin(settings, "jobs", "list", "--ids-only", *flags)
            assert done.code == 0, done.err
            return done.out.split()

        assert await found() == [bob, ada]
        assert await found("--status", "failed") == [bob]
        assert await found("--metadata", "user=ada", "--model", "toy") == [ada]
        assert await found("--metadata", "user=ada", "--metadata", "of=none") == []
        assert await found("--older", "1h") == []
        assert await found("--newer", "1h") == [bob, ada]
        assert await found("--attempts", "2") == []
        assert await found("--prefix", bob) == [bob]
        assert await found("--owner", "nobody") == []

        page = await admin(settings, "jobs", "list", "--limit", 1, "--json")
        assert [row["id"] for row in page.json] == [bob]
        assert page.json[0]["metadata"] == {"user": "bob"}
        assert page.err == f"there are more: --after {bob}\n"
        assert await found("--after", bob) == [ada]


async def test_the_steps_of_a_job_are_numbered_over_the_whole_of_it(settings: Settings) -> None:
    async with engine(settings) as running:
        job = await ended(running, steps=3)
        steps = (await admin(settings, "jobs", "steps", job, "--json")).json

        assert [(step["number"], step["node"], step["step"]) for step in steps] == [
            (1, "prepare", 0), (2, "count", 0), (3, "count", 1), (4, "count", 2), (5, "finish", 0),
        ]  # fmt: skip
        told = await running.client.checkpoints(job)
        assert [step["digests"].get("x") for step in steps] == [
            ref.digest if (ref := step.tensors.get("x")) else None for step in told
        ]
        assert steps[-1]["digests"].keys() == {"result.txt"}
        assert {step["worker"] for step in steps} == {running.workers[0].name}


async def test_a_job_is_followed_to_its_end_by_an_engine_and_from_the_log(settings: Settings) -> None:
    async with engine(settings) as running:
        job = await submit(running, steps=30)
        live = await admin(settings, "jobs", "watch", job, "--json")
        failed = await ended(running, prompt="a count fail=1")
        told = [event.position for event in await running.client.events(job)]
    after = await admin(settings, "jobs", "watch", job, "--json")

    assert (live.code, after.code) == (0, 0)
    assert live.out == after.out
    lines = [json.loads(line) for line in live.out.splitlines()]
    assert [line["position"] for line in lines] == told
    assert lines[-1]["type"] == "job_completed"
    assert (await admin(settings, "jobs", "watch", failed)).code == 1


async def test_a_job_that_is_not_there_is_said_to_be(settings: Settings) -> None:
    async with open_journal(settings.store_url):
        pass

    for command in ("show", "events", "steps", "watch"):
        done = await admin(settings, "jobs", command, "nope")
        assert (done.code, done.err) == (1, "error: no job 'nope'\n"), command
    done = await admin(settings, "jobs", "list", "--after", "nope")
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert done.err.startswith("error: after: no job 'nope'")


# -- changing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("live", [True, False])
async def test_jobs_are_cancelled_by_id_and_by_filter(settings: Settings, live: bool) -> None:
    async with engine(settings, workers=0) as running:
        first, second, third = [await submit(running, seed) for seed in (1, 2, 3)]
        kept = await submit(running, 4, metadata={"keep": "yes"})
        if live:
            await _cancel(settings, first, [second, third])
            assert (await running.client.job(kept)).state in (State.QUEUED, State.RUNNING)
            return
    await _cancel(settings, first, [second, third])
    async with engine(settings) as running:
        assert (await running.ended(kept)).state is State.COMPLETED
        assert (await running.client.job(first)).state is State.CANCELLED


async def _cancel(settings: Settings, first: str, others: list[str]) -> None:
    by_id = await admin(settings, "jobs", "cancel", first, "--json")
    assert by_id.json == [{"job": first, "outcome": "cancelled", "error": None}]

    prefix = first[:-1]
    plan = await admin(settings, "jobs", "cancel", "--prefix", prefix, "--newer", "1h", "--dry-run", "--json")
    assert {row["job"] for row in plan.json} > set(others)
    assert first not in {row["job"] for row in plan.json}

    for job in others:
        done = await admin(settings, "jobs", "cancel", "--prefix", job, "--json")
        assert [(row["job"], row["outcome"]) for row in done.json] == [(job, "cancelled")]
    again = await admin(settings, "jobs", "cancel", first)
    assert "already_terminal" in again.out


@pytest.mark.parametrize("live", [True, False])
async def test_one_that_fails_does_not_stop_the_others(settings: Settings, live: bool) -> None:
    async def cancelled(job: str) -> None:
        done = await admin(settings, "jobs", "cancel", "nope", job, "nothing")

        assert done.code == 1
        assert [line.split()[:2] for line in done.out.splitlines()[1:]] == [[job, "cancelled"]]
        assert done.err == "error: nope: no job 'nope'\nerror: nothing: no job 'nothing'\n"

    async with engine(settings, workers=0) as running:
        job = await submit(running)
        if live:
            await cancelled(job)
    if not live:
        await cancelled(job)


@pytest.mark.parametrize("live", [True, False])
async def test_only_jobs_that_have_ended_are_purged(settings: Settings, live: bool) -> None:
    async def purged(done: str, waiting: str) -> None:
        refused = await admin(settings, "jobs", "purge", waiting)
        assert (refused.code, refused.out.strip()) == (1, "nothing")
        assert "purge is not possible; possible: pause, cancel" in refused.err
        assert (await admin(settings, "jobs", "purge", "--older", "7d")).out.strip() == "nothing"

        plan = await admin(settings, "jobs", "purge", "--newer", "7d", "--dry-run", "--json")
        assert plan.json == [{"job": done, "status": "completed"}]
        assert (await admin(settings, "jobs", "show", done)).code == 0
        swept = await admin(settings, "jobs", "purge", "--newer", "7d", "--json")
        assert swept.json == [{"job": done, "outcome": "purged", "error": None}]
        assert (await admin(settings, "jobs", "show", done)).code == 1
        assert [row["id"] for row in (await admin(settings, "jobs", "list", "--json")).json] == [waiting]
        assert (await admin(settings, "db", "check")).code == 0

    async with engine(settings) as running:
        done = await ended(running)
        running.link.workers.clear()
        waiting = await submit(running, steps=20_000)
        if live:
            await purged(done, waiting)
    if not live:
        await purged(done, waiting)


async def test_a_purge_that_was_cut_off_is_finished(settings: Settings) -> None:
    async with engine(settings) as running:
        job = await ended(running)
    async with open_journal(settings.store_url) as journal:
        loaded = await journal.load(f"job/{job}")
        assert loaded is not None
        journal._writer.alone = _cut_off(journal._writer.alone)  # type: ignore[attr-defined]
        with pytest.raises(ConnectionError):
            await journal.purge(f"job/{job}", expected=loaded.version, epoch=loaded.epoch)
    assert (await admin(settings, "jobs", "show", job)).code == 1

    done = await admin(settings, "jobs", "purge", job)

    assert done.code == 0, done.err
    async with open_journal(settings.store_url, writable=False) as journal:
        assert await journal.purging() == await journal.read_all() == []


def _cut_off(alone: Any) -> Any:
    """The first of its transactions is the last."""
    calls = iter([alone])

    async def first(work: Any) -> Any:
        if (call := next(calls, None)) is None:
            raise ConnectionError
        return await call(work)

    return first


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["cancel"], "jobs: none is named: give ids, or a filter such as"),
        (["cancel", "a", "--status", "queued"], "jobs: there are ids, and --status too"),
        (["list", "--older", "2 hours"], "argument --older: '2 hours' is no time such as 90s, 15m, 2h or 7d"),
        (["list", "--metadata", "user"], "argument --metadata: 'user' is not KEY=VALUE"),
        (["list", "--status", "odd"], "argument --status: invalid choice: 'odd'"),
        (["list", "--limit", "0"], "argument --limit: '0' is not a number from 1 up"),
        (["nonsense"], "invalid choice: 'nonsense'"),
    ],
)
async def test_what_cannot_be_asked_for_is_one_line_and_exits_with_2(
    arguments: list[str], says: str, tmp_path: Path
) -> None:
    done = await admin(settings_of(tmp_path), "jobs", *arguments)

    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith("error: ")
    assert says in done.err


async def test_of_several_engines_the_one_that_has_the_job_is_asked(
    tmp_path: Path, new_database: Callable[[], str]
) -> None:
    shared = settings_of(tmp_path, new_database())
    async with engine(shared, name="one") as one, engine(shared, name="two") as two:
        asked = {"one": 0, "two": 0}
        for name, running in (("one", one), ("two", two)):
            running.client.cancel = _counting(asked, name, running.client.cancel)  # type: ignore[method-assign]
            for worker in running.workers:
                worker.gate = anyio.Event()
        jobs = [await submit(one, seed, steps=1000) for seed in range(12)]
        held = {"one": one.engine.ledger.actors, "two": two.engine.ledger.actors}
        await one.until(lambda: sum(map(len, held.values())) == len(jobs))
        await one.until(lambda: all(actor.durable.owner for actors in held.values() for actor in actors.values()))
        expected = {name: len(actors) for name, actors in held.items()}
        assert min(expected.values()) > 0

        done = await admin(shared, "jobs", "cancel", *jobs)

        assert done.code == 0, done.err
        assert asked == expected
        for running in (one, two):
            for worker in running.workers:
                assert worker.gate is not None
                worker.gate.set()


def _counting(asked: dict[str, int], name: str, cancel: Any) -> Any:
    async def counted(job: str, reason: str = "") -> Any:
        asked[name] += 1
        return await cancel(job, reason)

    return counted


async def test_a_lease_whose_url_leads_elsewhere_is_not_taken_for_its_engine(
    tmp_path: Path, new_database: Callable[[], str]
) -> None:
    shared, other = settings_of(tmp_path / "a", new_database()), settings_of(tmp_path / "b", new_database())
    async with engine(other, name="other", workers=0) as running:
        async with engine(shared, workers=0) as there:
            job = await submit(there)
        async with open_journal(shared.store_url) as journal:
            await journal.end_lease("engine")
            await journal.hold_lease("far-away", ttl_s=60, url=running.engine.settings.url)

        done = await admin(shared, "jobs", "cancel", job)

    assert (done.code, done.out.split()[-1]) == (0, "cancelled"), done.err  # by this process


@pytest.mark.slow
def test_thousands_are_purged_beside_an_engine_that_works(tmp_path: Path) -> None:
    with engine_process(tmp_path) as running:
        jobs = [running.submit("a count", steps=1, seed=seed) for seed in range(300)]
        for job in jobs:
            running.ended(job)
        busy = running.submit("a count sleep=0.1", steps=5_000)
        until(lambda: running.steps(busy), "the first step")

        done = run("engine-admin", "jobs", "purge", "--status", "completed", "--json", data=tmp_path)

        assert done.returncode == 0, done.stderr
        assert done.stdout.count('"purged"') == 300
        before = len(running.steps(busy))
        until(lambda: len(running.steps(busy)) > before, "a step after the purge")
        assert running.job(busy)["status"] == "running"
        listed = run("engine-admin", "jobs", "list", "--ids-only", data=tmp_path)
        assert listed.stdout.split() == [busy]
        assert run("engine-admin", "log", "verify", data=tmp_path).returncode == 0


@pytest.mark.slow
async def test_a_reader_that_has_had_enough_is_no_error(tmp_path: Path) -> None:
    async with engine(settings_of(tmp_path)) as running:
        for seed in range(20):
            await ended(running, seed, steps=60)
    export = f"{sys.executable} -m ops.admin log export --data {tmp_path}"
    script = f"exec 3>&1; {{ {export}; echo $? >&3; }} | head -1 >/dev/null"

    done = await anyio.run_process(["bash", "-c", script], check=False)

    assert (done.stdout.decode(), done.stderr.decode()) == ("0\n", "")
