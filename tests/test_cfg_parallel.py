"""Two ranks of real processes that share the branches of guidance: the bits of one, and no job lost with a rank."""

import signal
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from cards.model import Model
from ops.models import put
from ops.settings import Settings
from tests.parity import tiny, tiny_flux2, tiny_ltx2, tiny_wan
from tests.processes import EngineProcess, engine, run, until, workers_of

pytestmark = pytest.mark.slow

SHARING = {"families": "tests.branching", "ranks": 2, "parallel": "cfg"}
ALONE = {"families": "tests.branching"}
GUIDED = {"guidance": 2.0}


def made(running: EngineProcess, job: str) -> Any:
    """All that a job's steps made, by digest."""
    steps = [event["data"] for event in running.events(job) if event["type"] == "step_completed"]
    return [(step["node"], step["step"], step["tensors"], step["artifacts"]) for step in steps]


def lost(running: EngineProcess, job: str) -> list[str]:
    return [event["data"]["reason"] for event in running.events(job) if event["type"] == "worker_lost"]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with engine(tmp_path_factory.mktemp("alone"), **ALONE) as running:
        job = running.submit("a count", steps=12, **GUIDED)
        assert running.ended(job)["status"] == "completed"
        return made(running, job)


def test_a_job_of_one_branch_or_two_is_that_of_one_rank(tmp_path: Path, unbroken: Any) -> None:
    with engine(tmp_path / "two", **SHARING) as running:
        job, plain = running.submit("a count", steps=12, **GUIDED), running.submit("a count", steps=3, guidance=1.0)
        assert running.ended(job)["status"] == running.ended(plain)["status"] == "completed"

        assert made(running, job) == unbroken
        assert lost(running, job) == []
        assert len(made(running, plain)) == 5


def test_each_rank_evaluates_its_own_branch_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = tmp_path / "counted"
    counted.mkdir()
    monkeypatch.setenv("COUNTED", str(counted))
    with engine(tmp_path / "two", **SHARING) as running:
        job = running.submit("a count", steps=5, **GUIDED)
        assert running.ended(job)["status"] == "completed"

    lines = sorted(file.read_text().split("\n")[:-1] for file in counted.iterdir())
    assert lines == [[f"{branch} {step}" for step in range(5)] for branch in ("far", "near")]


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_lost_in_a_step_costs_its_pool_and_no_job(
    tmp_path: Path, unbroken: Any, sent: signal.Signals
) -> None:
    with engine(tmp_path, rank_timeout_s=2, **SHARING) as running:
        job = running.submit("a count far_sleep=0.3", steps=12, **GUIDED)
        until(lambda: len(running.steps(job)) >= 4, "three steps of counting")
        [first] = workers_of(running)
        [other] = psutil.Process(first).children()
        other.send_signal(sent)

        assert running.ended(job)["status"] == "completed"
        [reason] = lost(running, job)
        assert "rank 1" in reason
        assert made(running, job) == unbroken
        until(lambda: not psutil.pid_exists(other.pid) or other.status() == psutil.STATUS_ZOMBIE, "the rank to end")


@pytest.mark.parametrize(
    ("wish", "kind", "message"),
    [
        ("far_fail=2", "error", "ValueError: asked to fail (rank 1)"),
        ("near_fail=2", "error", "ValueError: asked to fail (rank 0)"),
        ("far_oom=2", "oom", "MemoryError: asked to run out of memory (rank 1)"),
    ],
)
def test_a_branch_that_fails_on_one_rank_fails_its_job_and_nothing_else(
    tmp_path: Path, wish: str, kind: str, message: str
) -> None:
    with engine(tmp_path, **SHARING) as running:
        before = workers_of(running)
        failed, well = running.submit(f"a count {wish}", **GUIDED), running.submit("a count", **GUIDED)

        error = running.ended(failed)["error"]
        assert (error["class"], error["message"], error["step"]) == (kind, message, 2)
        assert running.ended(well)["status"] == "completed"
        assert workers_of(running) == before


@pytest.mark.parametrize(("first", "second"), [(ALONE, SHARING), (SHARING, ALONE)])
def test_a_job_that_is_begun_in_a_pool_of_one_shape_is_finished_in_the_other(
    tmp_path: Path, unbroken: Any, first: dict[str, Any], second: dict[str, Any]
) -> None:
    with engine(tmp_path, **first) as running:
        job = running.submit("a count near_sleep=0.2", steps=12, **GUIDED)
        until(lambda: len(running.steps(job)) >= 4, "three steps of counting")
        running.kill_tree()
    with engine(tmp_path, **second) as running:
        assert running.ended(job)["status"] == "completed"

        assert made(running, job) == unbroken
        assert running.job(job)["exact"]


TINY: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "wan": (tiny.wan, "float32", {"size": "32x32", "frames": 5}),
    "wan-bf16": (tiny.wan, "bfloat16", {"size": "32x32", "frames": 5}),
    "wan-a14b": (tiny_wan.experts, "float32", {"size": "32x32", "frames": 5}),
    "flux2": (tiny_flux2.flux2, "float32", {"size": "48x32"}),
    "ltx2": (partial(tiny_ltx2.ltx2, "2.3"), "float32", {"size": "64x64", "frames": 9}),
}


def test_models_make_the_bits_of_one_rank(tmp_path: Path) -> None:
    """Every latent of every step, and what is decoded and rendered."""
    options = {"ltx2": {"recipe": "guided"}}
    found = {}
    for name, settings in (("one", ALONE), ("two", SHARING)):
        data = tmp_path / name
        data.mkdir()
        for model, (folder, precision, _) in TINY.items():
            entry = Model(name=model, folder=str(folder()), precision=precision, options=options.get(model, {}))
            put(Settings(data=data), entry, replace=False)
        with engine(data, **settings) as running:
            request = {"negative_prompt": "blurry", "steps": 3, "guidance": 3.0}
            jobs = {
                model: running.submit("a red cat", model, **request, **size) for model, (_, _, size) in TINY.items()
            }
            plain = running.submit("a red cat", "wan", steps=2, guidance=1.0, size="32x32", frames=5)
            assert {running.ended(job)["status"] for job in (*jobs.values(), plain)} == {"completed"}
            found[name] = {model: made(running, job) for model, job in (jobs | {"plain": plain}).items()}

    assert found["two"] == found["one"]


def test_what_cannot_be_shared_is_said_before_anything_is_loaded(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/w"
    for settings, says in (
        ({"ranks": 3}, "parallel: cfg=2 is for 2 ranks and there are 3; set ranks to 2"),
        ({"ranks": 2}, "parallel: cfg=2 has nothing to share among ranks: toy: its steps have one branch"),
    ):
        done = run("engine", "worker", "--connect", address, "--parallel", "cfg", data=tmp_path, **settings)
        assert done.returncode != 0
        assert says in done.stderr
