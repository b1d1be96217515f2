"""Engines whose workers are of one role each, as processes: the bits of one worker, also with workers killed."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cards.model import Model
from ops.models import put
from ops.settings import Settings
from tests.parity import tiny
from tests.processes import SHAPES, EngineProcess, engine, until

pytestmark = pytest.mark.slow

TOY = "tests.splitting"
LARGE = "a count wide=3000"
"""Its tensors are too large for messages, and most of them are stored at every third step only."""
SPLIT = {"split": "encoder=1,denoiser=1,decoder=1"}
MANY = {"split": "encoder=2,denoiser=2,decoder=1"}


def made(running: EngineProcess, job: str) -> Any:
    """All that a job's steps made, by digest."""
    ended = running.ended(job)
    assert ended["status"] == "completed", ended
    steps = [event["data"] for event in running.events(job) if event["type"] == "step_completed"]
    return [(step["node"], step["step"], step["tensors"], step["artifacts"], step["derived"]) for step in steps]


def toys(running: EngineProcess, prompt: str = LARGE) -> list[str]:
    return [running.submit(prompt, seed=seed, steps=8) for seed in range(4)]


def workers(running: EngineProcess, role: str) -> list[Any]:
    return [one for one in running.http.get("/v1/workers").json()["data"] if role in one["serves"]]


def fetched(running: EngineProcess) -> int:
    return sum(one["fetched"]["tensors"] for one in running.http.get("/v1/workers").json()["data"])


@pytest.fixture(scope="module")
def inline(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with engine(tmp_path_factory.mktemp("inline"), families=TOY) as running:
        return [made(running, job) for job in toys(running)]


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """In shared memory, under a name that could be ours: there are none."""
    yield
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(("psm_", "tensor", "transfers"))]


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("settings", [SPLIT, MANY, SPLIT | {"ranks": 2}], ids=["1:1:1", "2:2:1", "1:1:1 of 2 ranks"])
def test_split_engines_make_what_one_worker_makes(tmp_path: Path, inline: Any, settings: dict[str, Any]) -> None:
    with engine(tmp_path, families=TOY, **settings) as running:
        assert [made(running, job) for job in toys(running)] == inline

        until(lambda: fetched(running) > 0, "a heartbeat that says what was fetched")


@pytest.mark.usefixtures("nothing_left")
def test_workers_of_each_role_that_are_killed_cost_no_job(tmp_path: Path, inline: Any) -> None:
    with engine(tmp_path, families=TOY, **SPLIT) as running:
        jobs = toys(running, f"{LARGE} sleep=0.05")
        for job, role in zip(jobs, ("denoiser", "encoder", "decoder"), strict=False):
            until(lambda job=job: len(running.steps(job)) > 4, "some steps")  # type: ignore[misc]
            for one in workers(running, role):
                os.kill(one["pid"], signal.SIGKILL)

        assert [made(running, job) for job in jobs] == inline


def test_shapes_and_a_tiny_wan_are_those_of_one_worker(tmp_path: Path) -> None:
    found = []
    for name, settings in (("inline", {}), ("split", SPLIT)):
        put(Settings(data=tmp_path / name), Model(name="wan", folder=str(tiny.wan())), replace=False)
        with engine(tmp_path / name, families=SHAPES, **settings) as running:
            jobs = [
                running.submit("a red circle", "shapes", steps=2),
                running.submit("a red cat", "wan", steps=3, guidance=3.0, size="32x32", frames=5),
            ]
            found.append([made(running, job) for job in jobs])

    assert found[0] == found[1]
