"""Real processes, real sockets, real disk: what a person sees when things are killed."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.processes import SHAPES, EngineProcess, engine, gone, run, until, worker, workers_of
from workers.devices import memory_of

pytestmark = pytest.mark.slow

KILLING = "tests.killing_shapes"
PROMPT = "a red circle moving right on a black background"
STEPS = 4
CLIP: dict[str, Any] = {"model": "shapes", "steps": STEPS, "preview_every": 2}
ALL_STEPS = [
    ("encode", 0),
    *(("denoise", step) for step in range(STEPS)),
    *(("decode", step) for step in range(6)),
    ("render", 0),
]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """How the job ends when nothing happens to it."""
    with engine(tmp_path_factory.mktemp("unbroken"), families=SHAPES) as running:
        job = running.submit(PROMPT, **CLIP)
        assert running.ended(job)["status"] == "completed"
        return outcome(running, job)


def outcome(running: EngineProcess, job: str) -> Any:
    return running.checkpoints(job), running.artifact(job, "video.mp4"), running.artifact(job, "contact_sheet.png")


def test_no_kill_of_the_worker_at_any_step_changes_a_bit(
    tmp_path: Path, unbroken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = kill_at_every_step(tmp_path, monkeypatch)
    with engine(tmp_path, families=KILLING, max_deaths=len(ALL_STEPS)) as running:  # which are no doing of the job's
        job = running.submit(PROMPT, **CLIP)
        assert running.ended(job)["status"] == "completed"
        blamed = [event for event in running.events(job) if event["type"] == "worker_lost" and event["data"]["blamed"]]

        assert kills.read_text() == ""
        assert len(blamed) == len(ALL_STEPS)
        assert running.steps(job) == ALL_STEPS
        assert outcome(running, job) == unbroken


def test_no_kill_of_the_whole_tree_at_any_step_changes_a_bit(
    tmp_path: Path, unbroken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = kill_at_every_step(tmp_path, monkeypatch)
    monkeypatch.setenv("TREE", "1")
    with engine(tmp_path, families=KILLING, ready=False) as running:
        job = running.submit(PROMPT, **CLIP)
        running.process.wait(60)
    while kills.read_text():
        with engine(tmp_path, families=KILLING, ready=False) as running:
            assert running.process.wait(60) == -signal.SIGKILL

    with engine(tmp_path, families=KILLING) as running:
        assert running.ended(job)["status"] == "completed"
        recovered = [event for event in running.events(job) if event["type"] == "job_recovered"]

        assert len(recovered) == len(ALL_STEPS)
        assert running.steps(job) == ALL_STEPS
        assert outcome(running, job) == unbroken
        assert running.job(job)["exact"]


def kill_at_every_step(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    kinds = {"encode": "encode_text", "decode": "decode_vae"}
    kills = folder / "kills"
    kills.write_text("\n".join(f"{kinds.get(node, node)} {step}" for node, step in ALL_STEPS))
    monkeypatch.setenv("KILLS", str(kills))
    return kills


def test_jobs_interleaved_on_one_worker_equal_the_same_jobs_run_alone(tmp_path: Path, unbroken: Any) -> None:
    with engine(tmp_path, families=SHAPES) as running:
        others = [running.submit(f"a blue {shape} growing", model="shapes", seed=n, steps=3 + n)
                  for n, shape in enumerate(("square", "cross", "triangle"))]  # fmt: skip
        job = running.submit(PROMPT, **CLIP)
        for one in [job, *others]:
            assert running.ended(one)["status"] == "completed"

        assert outcome(running, job) == unbroken


def test_generate_goes_on_where_it_was_killed(tmp_path: Path, unbroken: Any) -> None:
    out = tmp_path / "out" / "clip.mp4"
    arguments = ["generate", PROMPT, "--seed", "7", "--steps", STEPS, "--preview-every", 2, "--out", out]
    settings = {"data": tmp_path / "data", "families": SHAPES, "threads": 1}
    with engine(tmp_path / "data", families=SHAPES) as running:
        job = running.submit(PROMPT, **CLIP)
        until(lambda: len(running.steps(job)) >= 3, "three steps")

    done = run("engine", *arguments, **settings)

    assert done.returncode == 0, done.stderr
    assert "going on with" in done.stderr
    assert done.stdout.splitlines() == [str(out), str(out.with_suffix(".png"))]
    assert (out.read_bytes(), out.with_suffix(".png").read_bytes()) == unbroken[1:]


def test_replay_verify_finds_all_equal_and_names_what_is_not(tmp_path: Path) -> None:
    with engine(tmp_path, families=SHAPES) as running:
        job = running.submit(PROMPT, **CLIP)
        assert running.ended(job)["status"] == "completed"
        latent = running.checkpoints(job)[2]["tensors"]["latent"]

    equal = run("engine-admin", "replay", "verify", job, data=tmp_path, families=SHAPES)
    assert (equal.returncode, "equal: 12 steps" in equal.stdout) == (0, True), equal.stdout + equal.stderr

    flip_a_bit_in_the_database(tmp_path / "keyframe.db", latent)
    damaged = run("engine-admin", "replay", "verify", job, data=tmp_path, families=SHAPES)
    assert damaged.returncode == 1
    assert "differs at denoise step 1, latent: the stored bytes do not hash" in damaged.stdout


def flip_a_bit_in_the_database(database: Path, digest: str) -> None:
    import sqlite3

    with sqlite3.connect(database) as connection:
        [data] = connection.execute("SELECT data FROM blobs WHERE digest = ?", [digest]).fetchone()
        changed = data[:-1] + bytes([data[-1] ^ 1])
        connection.execute("UPDATE blobs SET data = ? WHERE digest = ?", [changed, digest])
    connection.close()


def test_no_job_that_was_accepted_is_lost_and_none_is_made_twice(tmp_path: Path) -> None:
    accepted: dict[str, str] = {}
    keys = [f"order-{n}" for n in range(60)]

    def order(running: EngineProcess, key: str) -> None:
        body = {"model": "toy", "prompt": "a count", "seed": 7}
        answer = running.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": key})
        assert answer.status_code == 202
        assert accepted.setdefault(key, answer.json()["id"]) == answer.json()["id"]

    for round_ in range(4):
        with engine(tmp_path, ready=False) as running:
            killer = threading.Timer(0.05 + 0.1 * round_, os.killpg, [running.process.pid, signal.SIGKILL])
            killer.start()
            for key in keys:
                with contextlib.suppress(httpx.TransportError):
                    order(running, key)
            killer.join()
    with engine(tmp_path) as running:
        for key in keys:
            order(running, key)
        listed = running.http.get("/v1/jobs", params={"limit": 1000}).json()["data"]

        assert {job["id"] for job in listed} == set(accepted.values())
        assert len(listed) == len(keys)
        assert all(running.ended(job["id"])["status"] == "completed" for job in listed)


def test_a_job_that_kills_its_workers_is_failed_for_good_and_the_next_one_runs(tmp_path: Path) -> None:
    with engine(tmp_path) as running:
        poison = running.submit("a count kill=2")
        job = running.ended(poison)
        assert (job["status"], job["error"]["class"]) == ("failed", "poisoned")
        assert (job["error"]["node"], job["error"]["step"]) == ("count", 2)
        assert "signal 9" in job["error"]["message"]

        assert running.ended(running.submit("a count"))["status"] == "completed"
    with engine(tmp_path) as running:
        assert running.job(poison)["status"] == "failed"


def test_an_executor_that_ends_takes_its_process_along(tmp_path: Path) -> None:
    with engine(tmp_path) as running:
        job = running.ended(running.submit("a count die=1"))

        assert job["error"]["class"] == "poisoned"
        assert "Died" in job["error"]["message"]


def test_workers_do_not_outlive_an_engine_that_is_killed(tmp_path: Path) -> None:
    with engine(tmp_path, ranks=2) as running:
        running.submit("a count sleep=30")
        tree = [process.pid for process in psutil.Process(running.process.pid).children(recursive=True)]
        assert len(tree) == 2
        running.kill()

        until(lambda: all(gone(pid) for pid in tree), "the workers to end", within_s=10)


def test_a_frozen_worker_changes_nothing_when_it_thaws(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/w"
    settings = {"workers": 0, "listen_workers": address, "silent_s": 1}
    with engine(tmp_path, ready=False, **settings) as running, worker(tmp_path, address, silent_s=1) as first:
        until(lambda: running.http.get("/readyz").is_success, "the first worker")
        job = running.submit("a count sleep=0.1", steps=12)
        until(lambda: len(running.steps(job)) >= 3, "three steps")
        first.send_signal(signal.SIGSTOP)
        until(lambda: not running.http.get("/readyz").is_success, "the first worker's lease to run out")
        with worker(tmp_path, address, silent_s=1):
            assert running.ended(job)["status"] == "completed"
            before = running.events(job)
            first.send_signal(signal.SIGCONT)
            again = running.submit("a count", steps=30)
            assert running.ended(again)["status"] == "completed"
            assert running.events(job) == before

    assert [event["data"]["reason"] for event in before if event["type"] == "worker_lost"] == ["silent for 1 s"]
    with engine(tmp_path / "alone") as alone:
        same = alone.submit("a count sleep=0.1", steps=12)
        alone.ended(same)
        steps = [event["data"]["tensors"] for event in alone.events(same) if event["type"] == "step_completed"]
        assert [event["data"]["tensors"] for event in before if event["type"] == "step_completed"] == steps


def test_two_ranks_make_the_bits_of_one(tmp_path: Path, unbroken: Any) -> None:
    with engine(tmp_path, families=SHAPES, ranks=2) as running:
        job = running.submit(PROMPT, **CLIP)
        assert running.ended(job)["status"] == "completed"

        assert outcome(running, job) == unbroken


def test_the_workers_of_an_engine_share_the_memory_of_its_machine(tmp_path: Path) -> None:
    with engine(tmp_path, workers=2) as running:
        until(lambda: len(running.http.get("/v1/capacity").json()["workers"]) == 2, "both workers")
        workers = running.http.get("/v1/capacity").json()["workers"]

    assert [worker["memory_bytes"] for worker in workers] == [memory_of("cpu") // 2] * 2


def test_a_rank_that_dies_between_two_steps_costs_its_pool_and_no_job(tmp_path: Path) -> None:
    with engine(tmp_path, ranks=2) as running:
        job = running.submit("a count sleep=0.1", steps=20)
        until(lambda: len(running.steps(job)) >= 3, "three steps")
        [follower] = psutil.Process(workers_of(running)[0]).children()
        follower.kill()

        assert running.ended(job)["status"] == "completed"
        lost = [event["data"]["reason"] for event in running.events(job) if event["type"] == "worker_lost"]
        assert len(lost) == 1
        assert "rank 1" in lost[0]


def test_a_job_that_was_attached_to_another_calls_engine_is_finished_without_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with engine(data, families=SHAPES) as running:
        arguments = ["generate", PROMPT, "--seed", "1", "--steps", "40", "--out", str(tmp_path / "a.mp4")]
        environ = os.environ | {"KEYFRAME_DATA": str(data), "KEYFRAME_THREADS": "1"}
        first = subprocess.Popen([sys.executable, "-m", "ops.cli", *arguments], env=environ, stderr=subprocess.DEVNULL)
        until(lambda: running.http.get("/v1/jobs").json()["data"], "the job")
        running.kill_tree()
        assert first.wait(120) == 0

    assert (tmp_path / "a.mp4").is_file()


def test_ranks_that_diverge_end_their_pool(tmp_path: Path) -> None:
    with engine(tmp_path, ranks=2) as running:
        job = running.ended(running.submit("a count diverge=1"))

        assert job["error"]["class"] == "poisoned"
        assert "rank 1 made" in job["error"]["message"]
        assert running.ended(running.submit("a count"))["status"] == "completed"


def test_a_cancel_stops_a_real_worker_within_one_step(tmp_path: Path) -> None:
    with engine(tmp_path) as running:
        job = running.submit("a count sleep=0.3", steps=50)
        until(lambda: len(running.steps(job)) >= 2, "two steps")
        answer = running.http.post(f"/v1/jobs/{job}/cancel").json()
        done = len(running.steps(job))

        assert answer["outcome"] == "cancelling"
        assert running.ended(job)["status"] == "cancelled"
        assert len(running.steps(job)) <= done + 1
        assert running.http.post(f"/v1/jobs/{job}/cancel").json()["outcome"] == "already_terminal"
        assert running.ended(running.submit("a count"))["status"] == "completed"


def test_the_control_plane_answers_while_a_step_runs(tmp_path: Path) -> None:
    with engine(tmp_path) as running:
        job = running.submit("a count sleep=3", steps=1)
        until(lambda: ("prepare", 0) in running.steps(job), "the long step to begin")
        for _ in range(20):
            assert running.http.get("/livez").is_success
            assert running.http.get("/readyz").is_success

        assert running.job(job)["status"] == "running"


def test_sigterm_hands_jobs_back_and_the_next_engine_goes_on(tmp_path: Path) -> None:
    with engine(tmp_path) as running:
        job = running.submit("a count sleep=0.1", steps=30)
        until(lambda: len(running.steps(job)) >= 3, "three steps")
        workers = workers_of(running)
        assert running.terminate() == 0
        assert all(gone(pid) for pid in workers)

    with engine(tmp_path) as running:
        kinds = [event["type"] for event in running.events(job)]
        assert kinds.count("job_released") == 1
        assert "worker_lost" not in kinds
        assert running.ended(job)["status"] == "completed"
        assert len(set(running.steps(job))) == len(running.steps(job)) == 32


def test_a_worker_that_is_told_to_stop_finishes_its_step_and_blames_nobody(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/w"
    settings = {"workers": 0, "listen_workers": address}
    with engine(tmp_path, ready=False, **settings) as running, worker(tmp_path, address) as first:
        until(lambda: running.http.get("/readyz").is_success, "the first worker")
        job = running.submit("a count sleep=0.1", steps=20)
        until(lambda: len(running.steps(job)) >= 3, "three steps")
        first.terminate()
        assert first.wait(30) == 0
        with worker(tmp_path, address):
            assert running.ended(job)["status"] == "completed"
            lost = [event["data"] for event in running.events(job) if event["type"] == "worker_lost"]

    assert not any(event["blamed"] for event in lost)


def test_a_job_survives_its_engine_on_postgresql(tmp_path: Path, new_database: Callable[[], str]) -> None:
    store = new_database()
    with engine(tmp_path, store=store) as running:
        job = running.submit("a count sleep=0.05 big=100000", steps=20)
        until(lambda: len(running.steps(job)) >= 4, "four steps")

    with engine(tmp_path, store=store) as running:
        assert running.ended(job)["status"] == "completed"
        assert len(set(running.steps(job))) == len(running.steps(job)) == 22
        assert running.job(job)["exact"]
    assert run("engine-admin", "db", "check", "--store", store, data=tmp_path).returncode == 0
    assert run("engine-admin", "replay", "verify", job, "--store", store, data=tmp_path).returncode == 0


def test_an_operator_works_beside_a_live_engine_and_without_one(tmp_path: Path) -> None:
    with engine(tmp_path) as running:
        first, second = (running.submit("a count sleep=0.2", steps=40, seed=n) for n in (1, 2))
        listed = run("engine-admin", "jobs", "list", "--json", data=tmp_path)
        cancelled = run("engine-admin", "jobs", "cancel", first, "--json", data=tmp_path)
        checked = run("engine-admin", "db", "check", data=tmp_path)

        assert {first, second} == {row["id"] for row in decode(listed)}
        assert decode(cancelled)[0]["outcome"] in ("cancelled", "cancelling")
        assert checked.returncode == 0, checked.stdout

    cancelled = run("engine-admin", "jobs", "cancel", second, "--json", data=tmp_path)
    assert decode(cancelled)[0]["outcome"] == "cancelled"
    assert run("engine-admin", "jobs", "show", "job-nowhere", data=tmp_path).stderr == "error: no job 'job-nowhere'\n"
    assert decode(run("engine-admin", "jobs", "events", second, "--json", data=tmp_path))[-1]["type"] == "job_cancelled"


def decode(done: "subprocess.CompletedProcess[str]") -> Any:
    import msgspec

    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout)


def test_the_engine_does_not_import_torch() -> None:
    modules = "api.app, engine.client, engine.replay, engine.supervisor, cards.shapes.family, ops.serve, ops.cli"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
