"""What is done to jobs, in bulk and one by one: the same beside an engine and without one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from cards.request import RequestChanges
from engine.job import State
from ops.admin.courses import ALLOWED
from ops.settings import Settings
from store.open import open_journal
from tests.ops.admin import Done, admin, engine, settings_of
from tests.sim import Running, digests, request

FIELDS = ", ".join(RequestChanges.__struct_fields__)


@pytest.fixture(params=["sqlite", "postgres"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    if request.param == "sqlite":
        return settings_of(tmp_path)
    new_database: Callable[[], str] = request.getfixturevalue("new_database")
    return settings_of(tmp_path, new_database())


async def submit(running: Running, seed: int = 7, prompt: str = "a count", **fields: Any) -> str:
    return (await running.client.submit(request(prompt, seed=seed, **fields))).id


async def statuses(settings: Settings) -> dict[str, str]:
    return {row["id"]: row["status"] for row in (await admin(settings, "jobs", "list", "--json")).json}


def outcomes(done: Done) -> dict[str, str]:
    assert done.code == 0, done.err
    return {row["job"]: row["outcome"] for row in done.json}


@pytest.mark.parametrize("live", [True, False])
async def test_every_verb_does_its_work_on_what_a_filter_finds(settings: Settings, live: bool) -> None:
    async def everything(jobs: list[str]) -> None:
        for verb, after in (
            ("pause", "paused"), ("resume", "queued"), ("quarantine", "quarantined"), ("release", "queued"),
            ("terminate", "cancelled"), ("retry", "queued"), ("cancel", "cancelled"),
        ):  # fmt: skip
            done = outcomes(await admin(settings, "jobs", verb, "--prefix", "job-", "--json"))
            assert set(done) == set(jobs), verb
            assert set(done.values()) == {"cancelled" if verb == "cancel" else "done"}, verb
            assert set((await statuses(settings)).values()) <= {after, "running" if after == "queued" else after}, verb
        assert outcomes(await admin(settings, "jobs", "pause", "--prefix", "job-", "--json")) == {}
        assert set(outcomes(await admin(settings, "jobs", "purge", "--prefix", "job-", "--json"))) == set(jobs)
        assert await statuses(settings) == {}

    async with engine(settings, workers=0) as running:
        jobs = [await submit(running, seed) for seed in range(3)]
        if live:
            await everything(jobs)
    if not live:
        await everything(jobs)


@pytest.mark.parametrize("live", [True, False])
async def test_a_verb_that_does_not_fit_fails_for_that_job_alone(settings: Settings, live: bool) -> None:
    async def resumed(paused: str, failed: str) -> None:
        done = await admin(settings, "jobs", "resume", failed, paused)

        assert done.code == 1
        assert done.out.split()[2:] == [paused, "done"]
        assert done.err.startswith(f"error: {failed}: job {failed} is failed: resume is not possible; possible: retry")
        assert done.err.count("\n") == 1

    async with engine(settings) as running:
        failed = (await running.ended(await submit(running, prompt="a count fail=1"))).id
        running.workers[0].gate = gate = anyio.Event()
        paused = await submit(running, 8)
        assert (
            outcomes(await admin(settings, "jobs", "pause", paused, "--reason", "dinner", "--json"))[paused] == "done"
        )
        assert (await running.client.job(paused)).reason == "dinner"
        gate.set()
        if live:
            await resumed(paused, failed)
            assert (await running.ended(paused)).state is State.COMPLETED
    if not live:
        await resumed(paused, failed)


@pytest.mark.parametrize("live", [True, False])
async def test_a_job_goes_on_from_an_earlier_step_and_to_the_same_bits(settings: Settings, live: bool) -> None:
    async def taken_back(job: str) -> None:
        done = await admin(settings, "jobs", "rewind", job, "--to-step", 3, "--json")
        assert (done.json["outcome"], done.json["status"]) == ("done", "queued"), done.err
        steps = (await admin(settings, "jobs", "steps", job, "--json")).json
        assert [step["number"] for step in steps][:3] == [1, 2, 3]
        too_far = await admin(settings, "jobs", "rewind", job, "--to-step", 99)
        assert (too_far.code, too_far.err.count("\n")) == (1, 1)
        assert too_far.err.startswith("error: to_step: 99 is no step of job")

    async with engine(settings) as running:
        expected = digests(await running.client.checkpoints((await running.ended(await submit(running, steps=9))).id))
        job = (await running.ended(await submit(running, prompt="a count fail=5", steps=9))).id
        assert expected[:6] == digests(await running.client.checkpoints(job))
        if live:
            running.link.workers.clear()
            await taken_back(job)
            return
    await taken_back(job)


@pytest.mark.parametrize("live", [True, False])
async def test_a_step_is_pinned_and_shown_as_such(settings: Settings, live: bool) -> None:
    async def pinned(job: str) -> None:
        done = [
            (await admin(settings, "jobs", verb, job, "--step", step, "--json")).json["outcome"]
            for verb, step in (("pin", 2), ("pin", 3), ("pin", 2), ("unpin", 3))
        ]
        assert done == ["done", "done", "unchanged", "done"]
        steps = (await admin(settings, "jobs", "steps", job, "--json")).json
        assert [step["number"] for step in steps if step["pinned"]] == [2]
        assert (await admin(settings, "jobs", "show", job, "--json")).json["pins"] == [2]
        too_far = await admin(settings, "jobs", "pin", job, "--step", 99)
        assert (too_far.code, too_far.err.count("\n")) == (1, 1)
        assert too_far.err.startswith("error: step: 99 is no step of job")

    async with engine(settings) as running:
        job = (await running.ended(await submit(running))).id
        if live:
            await pinned(job)
    if not live:
        await pinned(job)
    assert (await admin(settings, "db", "check")).code == 0


@pytest.mark.parametrize("live", [True, False])
async def test_a_fork_shares_the_first_steps(settings: Settings, live: bool) -> None:
    async def forked(job: str) -> str:
        flags = ["--at-step", 3, "--set", "priority=5", "--set", "prompt=a count, the = of others"]
        done = await admin(settings, "jobs", "fork", job, *flags, "--json")
        assert done.json["parent"] == {"id": job, "at_step": 3}, done.err
        assert (done.json["priority"], done.json["prompt"]) == (5, "a count, the = of others")
        fork: str = done.json["id"]
        ours, theirs = [(await admin(settings, "jobs", "steps", one, "--json")).json for one in (job, fork)]
        assert [step["digests"] for step in theirs[:3]] == [step["digests"] for step in ours[:3]]
        return fork

    async with engine(settings) as running:
        job = (await running.ended(await submit(running, steps=6))).id
        if live:
            fork = await forked(job)
            assert (await running.ended(fork)).state is State.COMPLETED
            assert (await admin(settings, "replay", "diff", job, job)).code == 0
            return
    fork = await forked(job)
    async with engine(settings) as running:
        assert (await running.ended(fork)).state is State.COMPLETED


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("guidance=abc", "guidance: 'abc' is not a number such as 7.5"),
        ("guidance=nan", "guidance: 'nan' is not a number such as 7.5"),
        ("guidance=NaN", "guidance: 'NaN' is not a number such as 7.5"),
        ("guidance=1e999", "guidance: '1e999' is not a number such as 7.5"),
        ("guidance=", "guidance: '' is not a number such as 7.5"),
        ("guidance=null", "guidance: 'null' is not a number such as 7.5"),
        ("seed=1.5", "seed: '1.5' is not a whole number"),
        (f"seed={'9' * 5000}", f"seed: '{'9' * 60}…' is not a whole number"),
        ("metadata=[]", 'metadata: \'[]\' is not an object of texts such as {"user": "ada"}'),
        ('metadata={"a":1}', 'metadata: \'{"a":1}\' is not an object of texts such as {"user": "ada"}'),
        ("strengths=1", "strengths: '1' is not a list of numbers such as [0.8, 1.0], one for each LoRA of the job"),
        ("interceptors=[]", "interceptors: '[]' is not an object of thresholds such as {\"step_skip\": 0.1}"),
        ("colour=red", f"there is no field 'colour' to set; there are: {FIELDS}"),
        ("model=toy", f"there is no field 'model' to set; there are: {FIELDS}"),
        ("prompt=another", "prompt is there twice, as 'another' too: give it one value"),
    ],
)
async def test_a_change_that_cannot_be_names_field_value_and_what_is_allowed(
    flag: str, says: str, tmp_path: Path
) -> None:
    twice = ("--set", "prompt=one", "--set", flag)

    done = await admin(settings_of(tmp_path), "jobs", "fork", "j", "--at-step", "1", *twice)

    assert (done.code, done.err) == (2, f"error: set: {says}\n")


def test_every_field_that_may_be_changed_says_what_it_takes() -> None:
    assert tuple(ALLOWED) == RequestChanges.__struct_fields__


async def test_two_jobs_are_told_apart_at_their_first_other_step(settings: Settings) -> None:
    async with engine(settings) as running:
        ours = (await running.ended(await submit(running))).id
        same = (await running.ended(await submit(running))).id
        other = (await running.ended(await submit(running, 8))).id

    assert (await admin(settings, "replay", "diff", ours, same)).code == 0
    differing = await admin(settings, "replay", "diff", ours, other, "--json")
    assert (differing.code, differing.json["difference"]["node"], differing.json["difference"]["step"]) == (
        1, "prepare", 0,
    )  # fmt: skip
    assert f"  {other}  " in (await admin(settings, "replay", "diff", ours, other)).out
    part = await admin(settings, "replay", "verify", ours, "--from-step", 4, "--json")
    assert (part.json["equal"], part.json["verdict"]["steps"]) == (True, 2)
    assert (await admin(settings, "replay", "verify")).code == 2
    assert (await admin(settings, "replay", "verify", ours, "--all")).code == 2
    assert len((await admin(settings, "replay", "verify", "--all", "--json")).json) == 3


async def test_a_move_is_planned_and_made(settings: Settings) -> None:
    async with engine(settings) as running:
        running.workers[0].gate = gate = anyio.Event()
        job = await submit(running)
        await running.until(lambda: bool(running.workers[0].ran))

        plan = await admin(settings, "jobs", "migrate", job, "--to", "pool:default", "--dry-run", "--json")
        nowhere = await admin(settings, "jobs", "migrate", job, "--to", "pool:moon")
        gate.set()

        assert (plan.json["outcome"], plan.json["to"]) == ("planned", "pool:default"), plan.err
        assert (nowhere.code, nowhere.err.count("\n")) == (1, 1)
        assert "moon" in nowhere.err
        assert (await running.ended(job)).state is State.COMPLETED


async def test_workers_are_listed_drained_and_fenced(settings: Settings) -> None:
    async with engine(settings, workers=3) as running:
        await running.until(lambda: len(running.engine.fleet.seats) == 3)
        first, second, third = (worker.name for worker in running.workers)
        listed = (await admin(settings, "workers", "list", "--json")).json
        assert {worker["id"]: worker["engine"] for worker in listed} == dict.fromkeys([first, second, third], "engine")

        drained = await admin(settings, "workers", "drain", first, "--json")
        fenced = await admin(settings, "workers", "fence", second, "--reason", "smokes", "--json")
        unknown = await admin(settings, "workers", "drain", "nobody")

        assert (drained.json["outcome"], fenced.json["outcome"]) == ("draining", "fenced")
        assert unknown.err.startswith(f"error: worker: 'nobody' is with no live engine; there are: {third}")
        assert (await running.ended(await submit(running))).state is State.COMPLETED


async def test_a_worker_sleeps_and_wakes_by_component(settings: Settings) -> None:
    async with engine(settings) as running:
        await running.until(lambda: bool(running.engine.fleet.seats))
        [worker] = [one.name for one in running.workers]

        asleep = await admin(settings, "workers", "sleep", worker, "--component", "counter", "--json")
        awake = await admin(settings, "workers", "wake", worker, "--model", "toy", "--json")
        unknown = await admin(settings, "workers", "sleep", worker, "--component", "lungs")
        listed = await admin(settings, "workers", "list")

        assert (asleep.json["outcome"], asleep.json["components"]) == ("falling_asleep", ["toy/counter"])
        assert (awake.json["outcome"], awake.json["components"]) == ("waking", ["toy/counter"])
        assert "this worker has no 'lungs'; there are: counter" in unknown.err
        assert listed.out.split("\n")[0].split()[-4:] == ["resident", "weights", "kept", "fetched"]


async def test_without_an_engine_there_are_no_workers(settings: Settings) -> None:
    async with open_journal(settings.store_url):
        pass

    done = await admin(settings, "workers", "list")

    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "start one" in done.err
