"""Engines as processes on one PostgreSQL: who has which job when they are stopped, killed or frozen."""

import itertools
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.chaos.database import own_postgres
from tests.processes import EngineProcess, engine, run, until

pytestmark = pytest.mark.slow

LONG = "a count sleep=0.1"


class Store:
    """One database, the engines on it, and its log as the database has it."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self._folder = folder

    def engine(self, name: str, **settings: Any) -> AbstractContextManager[EngineProcess]:
        own = {"store": self.url, "blobs": self._folder / "blobs", "pool": name, "lease_s": 2}
        return engine(self._folder / name, **own | settings)

    def ask(self, sql: str, *values: object) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(sql, values).fetchall()

    def count(self, type: str) -> int:
        [(count,)] = self.ask("SELECT count(*) FROM events WHERE type = %s", type)
        return int(count)

    def completed(self, jobs: list[str]) -> None:
        """All of them, in time."""
        done = "SELECT count(*) FROM jobs WHERE status = 'completed'"
        until(lambda: self.ask(done) == [(len(jobs),)], f"{len(jobs)} jobs to complete")


@pytest.fixture
def store(tmp_path: Path, new_database: Callable[[], str]) -> Store:
    return Store(new_database(), tmp_path)


def takers(running: EngineProcess, job: str) -> list[str]:
    """The engines that took a job, in turn."""
    takes = [event for event in running.events(job) if event["type"] in ("job_admitted", "job_recovered")]
    return [event["data"]["engine"] for event in takes]


def name_of(running: EngineProcess, store: Store) -> str:
    [(name,)] = store.ask("SELECT name FROM engines WHERE name LIKE %s", f"%-{running.process.pid}-%")
    return str(name)


def lease_until(name: str, store: Store) -> float:
    [(until_,)] = store.ask("SELECT expires_at FROM engines WHERE name = %s", name)
    return float(until_)


def each_step_once(running: EngineProcess, jobs: list[str], steps: int) -> bool:
    return all(len(set(running.steps(job))) == len(running.steps(job)) == steps + 2 for job in jobs)


def test_an_engine_that_starts_beside_another_leaves_its_jobs_alone(store: Store) -> None:
    with store.engine("one") as one:
        jobs = [one.submit(LONG, steps=20, seed=seed) for seed in range(6)]
        until(lambda: store.count("step_completed") > 12, "the jobs to run")
        with store.engine("two") as two:
            store.completed(jobs)

            assert all(takers(two, job) == [name_of(one, store)] for job in jobs)
            assert each_step_once(two, jobs, 20)


def test_verbs_at_an_engine_that_has_no_worker_are_done_by_the_one_that_drives_the_job(store: Store) -> None:
    with store.engine("one") as one, store.engine("two", workers=0, ready=False) as two:
        job = one.submit(LONG, steps=20)
        until(lambda: len(two.steps(job)) > 2, "it to run")
        drivers = takers(two, job)
        for verb, body in (("migrate", {"to": "one"}), ("retry", {}), ("resume", {}), ("migrate", {"to": "pool:one"})):
            answer = two.http.post(f"/v1/jobs/{job}/{verb}", json=body)
            assert answer.status_code == 200, answer.text
        nowhere = two.http.post(f"/v1/jobs/{job}/migrate", json={"to": "moon"})
        store.completed([job])

        assert (nowhere.status_code, nowhere.json()["error"]["code"]) == (422, "no_such_place")
        assert takers(two, job) == drivers
        assert each_step_once(two, [job], 20)
        assert store.ask("SELECT count(*) FROM events WHERE stream LIKE %s", "ask/%") == [(0,)]


def test_a_second_engine_of_one_data_folder_is_refused_in_a_line(store: Store) -> None:
    with store.engine("one") as one:
        second = run("engine", "serve", data=one.data, store=store.url, port=0)

        assert second.returncode == 1
        assert f"the engine with pid {one.process.pid} holds" in second.stderr
        assert "Traceback" not in second.stderr
        assert one.http.get("/readyz").is_success


def test_the_jobs_of_an_engine_that_is_killed_are_shared_out(store: Store) -> None:
    with store.engine("one") as one:
        jobs = [one.submit("a count sleep=0.2", steps=3, seed=seed) for seed in range(40)]
        until(lambda: store.count("job_admitted") == 40, "it to take all of them")
        with store.engine("two") as two, store.engine("three") as three:
            one.kill_tree()
            store.completed(jobs)

            last = Counter(takers(two, job)[-1] for job in jobs)
            assert min(last[name_of(two, store)], last[name_of(three, store)]) > 5
            assert all(len(takers(two, job)) <= 2 for job in jobs)
            assert each_step_once(two, jobs, 3)


def test_all_goes_on_though_the_database_is_restarted_again_and_again_while_jobs_are_recovered(tmp_path: Path) -> None:
    with own_postgres() as database:
        store = Store(database.url, tmp_path)
        with store.engine("one") as one:
            jobs = [one.submit("a count sleep=0.02", steps=4, seed=seed) for seed in range(40)]
            until(lambda: store.count("job_admitted") == 40, "it to take all of them")
        with store.engine("two", max_active=4) as two:
            for more in (1, 10, 20):
                until(lambda more=more: store.count("job_recovered") >= more, f"{more} jobs to be recovered")
                database.restart()
            store.completed(jobs)

            assert each_step_once(two, jobs, 4)


def test_a_stopped_engine_waits_for_no_lease_and_a_killed_one_does(store: Store) -> None:
    taken = "SELECT min(at) FROM events WHERE type = 'job_recovered' AND position > %s"
    last = "SELECT max(position) FROM events WHERE type IN ('job_admitted', 'job_recovered')"
    with store.engine("one", lease_s=40) as one, store.engine("two", workers=0, ready=False) as two:
        job = one.submit(LONG, steps=200)
        until(lambda: len(two.steps(job)) > 2, "it to run")  # with the first, though the second may have had it before
        until_, [(before,)] = lease_until(name_of(one, store), store), store.ask(last)
        second = name_of(two, store)
        assert one.terminate() == 0
        until(lambda: takers(two, job)[-1] == second, "the other to take it")
        assert store.ask(taken, before)[0][0] < until_

        with store.engine("three", lease_s=3, workers=0, ready=False) as three:
            third, [(before,)] = name_of(three, store), store.ask(last)
            two.kill_tree()
            until_ = lease_until(second, store)
            until(lambda: takers(three, job)[-1] == third, "the third to take it")
            assert store.ask(taken, before)[0][0] > until_


def test_what_is_being_stored_when_an_engine_is_stopped_changes_no_owner(store: Store) -> None:
    with store.engine("one") as one, store.engine("two", workers=0, ready=False) as two:
        jobs = [one.submit("a count big=4000000", steps=30, seed=seed) for seed in range(4)]
        until(lambda: store.count("step_completed") > 12, "tensors to be on their way")
        assert one.terminate() == 0
        assert store.count("job_released") > 0
        with store.engine("three") as three:
            store.completed(jobs)
            assert each_step_once(three, jobs, 30)
        assert two.http.get("/livez").is_success

    for job in jobs:
        log = store.ask("SELECT epoch, type FROM events WHERE stream = %s ORDER BY position", f"job/{job}")
        for (epoch, type), (next_epoch, following) in itertools.pairwise(log):
            assert (type == "job_released") <= (next_epoch > epoch), "only a claim follows a release"
            assert (next_epoch > epoch) == (following in ("job_admitted", "job_recovered")), "only a claim is a claim"


def test_an_engine_that_was_frozen_past_its_lease_writes_nothing_more(store: Store) -> None:
    with store.engine("one") as one:
        job = one.submit(LONG, steps=60)
        until(lambda: len(one.steps(job)) >= 3, "three steps")
        with store.engine("two") as two:
            names = [name_of(one, store), name_of(two, store)]
            one.process.send_signal(signal.SIGSTOP)
            until(lambda: takers(two, job) == names, "the other to take it")
            one.process.send_signal(signal.SIGCONT)  # a step of its worker has been waiting for it
            until(lambda: "has run out" in one.log(), "it to see what time it is")
            store.completed([job])

            assert takers(two, job) == names
            assert each_step_once(one, [job], 60)
            events = two.events(job)
            taken = [event["type"] for event in events].index("job_recovered")
            pools = {event["data"]["worker"].split("-")[0] for event in events[taken:] if "worker" in event["data"]}
            assert pools == {"two"}


def test_a_job_that_kills_its_workers_kills_three_in_all_wherever_it_goes(store: Store) -> None:
    """Its order comes again all the time, it is moved between the engines, and others run beside it."""
    with store.engine("one") as one, store.engine("two") as two:
        names = {name_of(running, store): running for running in (one, two)}
        others = [one.submit(LONG, steps=20, seed=seed) for seed in range(4)]
        poison = order_again(one)
        moved = 0
        while (now := two.job(poison))["status"] not in ("failed", "completed"):
            assert order_again(two) == poison
            if moved < 2 and store.count("worker_lost"):
                other = next(name for name in names if name != now.get("engine"))
                moved += two.http.post(f"/v1/jobs/{poison}/migrate", json={"to": other}).is_success
        assert order_again(one) == poison
        assert one.job(poison)["error"]["class"] == "poisoned"

        assert {one.ended(job)["status"] for job in others} == {"completed"}
        assert {job: blames(one, job) for job in (poison, *others) if blames(one, job)} == {poison: 3}
        killed = [line for running in (one, two) for line in running.log().splitlines() if "worker process" in line]
        assert ["was killed by signal 9" in line for line in killed] == [True] * 3


def blames(running: EngineProcess, job: str) -> int:
    """How many workers it was blamed for."""
    return sum(event["type"] == "worker_lost" and event["data"]["blamed"] for event in running.events(job))


def order_again(running: EngineProcess) -> str:
    body = {"model": "toy", "prompt": "a count kill=1", "seed": 7}
    return str(running.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "poison"}).json()["id"])
