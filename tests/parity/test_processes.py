"""Every card in real engines and workers that are killed: the bits of the run that nothing happens to.

A worker process runs no more than one step of any job (tests/parity/one_step.py), so that each step of all cards is
that of a process which has run none of that job before. Workers are killed by SIGKILL with a step begun; the engine is
as well, but for every fourth time, when it must miss the worker itself.
"""

import base64
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ops import models
from ops.settings import Settings
from tests.parity.every_card import ASKED, FROM_IMAGE, REQUESTS, png
from tests.parity.every_card import models as every_model
from tests.parity.one_step import OneStepWorkers, one_step_workers
from tests.parity.reference import Digests
from tests.processes import EngineProcess, engine, until, worker

pytestmark = pytest.mark.slow

IMAGE = f"data:image/png;base64,{base64.b64encode(png()).decode()}"
OWN = {"silent_s": 4, "families": ""}
"""What engines and workers have in common."""


def registered(data: Path, names: Iterable[str]) -> Path:
    """A data folder that has these models."""
    for model in every_model():
        if model.name in names:
            models.put(Settings(data=data), model, replace=False)
    return data


def place(data: Path) -> tuple[str, dict[str, Any]]:
    """Where workers connect, and the settings of an engine that starts none itself."""
    address = f"ipc://{data}/w"
    return address, {"workers": 0, "listen_workers": address, "ready": False} | OWN


def submit(running: EngineProcess, model: str) -> str:
    fields = ASKED | REQUESTS[model] | ({"image": IMAGE} if model in FROM_IMAGE else {})
    return running.submit(model=model, **fields)


def steps_of(running: EngineProcess, job: str) -> Digests:
    return {(step["loop"], step["step"]): step["tensors"] for step in running.checkpoints(job)}


def ended(running: EngineProcess, job: str) -> bool:
    found = running.job(job)
    assert found["status"] not in ("failed", "cancelled"), found
    return bool(found["status"] == "completed")


def taken(running: EngineProcess, job: str, times: int) -> bool:
    """Whether so many engines have had the job."""
    types = [event["type"] for event in running.events(job)]
    return types.count("job_admitted") + types.count("job_recovered") == times


def workers_of(running: EngineProcess, job: str) -> list[str]:
    """Step by step."""
    return [event["data"]["worker"] for event in running.events(job) if event["type"] == "step_completed"]


def done(running: EngineProcess, workers: OneStepWorkers, jobs: Iterable[str]) -> bool:
    """Whether the worker can do no more, and all that it did is on disk."""
    if not workers.stands_still():
        return all(ended(running, job) for job in jobs)
    return all(workers.ran(job) == sum(map(workers.is_of, workers_of(running, job))) for job in jobs)


class Engines:
    """One after the other, over the same data."""

    def __init__(self, data: Path, **settings: Any) -> None:
        self._start = partial(EngineProcess, data, **settings)
        self.number = 1
        self.running = self._start()

    def kill(self) -> None:
        self.running.kill()
        self.number += 1
        self.running = self._start()


def run_killed(engines: Engines, workers: OneStepWorkers, jobs: Iterable[str]) -> None:
    """All jobs to their end."""
    left = [*jobs]
    while left:
        run_one_step(engines, workers, left)
        left = [job for job in left if not ended(engines.running, job)]
        if workers.number % 4 == 0:
            wait_for_none(engines.running)
        else:
            engines.kill()


def run_one_step(engines: Engines, workers: OneStepWorkers, jobs: Iterable[str]) -> None:
    """Of each job, in a worker that is killed then."""
    until(lambda: all(taken(engines.running, job, engines.number) for job in jobs), "the engine to have all jobs")
    workers.start()
    until(lambda: done(engines.running, workers, jobs), "the worker to stand still")
    workers.kill()


def wait_for_none(running: EngineProcess) -> None:
    until(lambda: not running.http.get("/readyz").is_success, "the worker to be missed")


async def test_every_card_killed_after_every_step_makes_the_bits_of_one_that_is_not(
    tmp_path: Path, unbroken: dict[str, Digests]
) -> None:
    data = registered(tmp_path, REQUESTS)
    address, settings = place(data)
    engines = Engines(data, **settings)
    try:
        jobs = {model: submit(engines.running, model) for model in REQUESTS}
        with one_step_workers(data, address, **OWN) as workers:
            run_killed(engines, workers, jobs.values())

        assert engines.number > 3
        for model, job in jobs.items():
            found = engines.running.job(job)
            assert (found["status"], found["exact"]) == ("completed", True), found
            assert steps_of(engines.running, job) == unbroken[model], model
            ran = workers_of(engines.running, job)
            assert len({*ran}) == len(ran) == len(unbroken[model]), f"two steps of {model} were one process's"
    finally:
        engines.running.kill_tree()


async def test_a_card_that_goes_on_with_other_instructions_says_that_it_is_inexact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = registered(tmp_path, ["flux2-distilled"])
    address, settings = place(data)
    with engine(data, **settings) as running:
        job = submit(running, "flux2-distilled")
        with one_step_workers(data, address, **OWN) as workers:
            workers.start()
            until(lambda: done(running, workers, [job]), "the worker to stand still")
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
        with worker(data, address, **OWN):
            assert running.ended(job)["status"] == "completed"

        changes = [event["data"] for event in running.events(job) if event["type"] == "numerics_changed"]
        before, after = [change["fingerprint"] for change in changes]
        assert "isa=DEFAULT" not in before
        assert "isa=DEFAULT" in after
        assert not running.job(job)["exact"]
