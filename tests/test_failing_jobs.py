"""Jobs that fail by the hundred, in real processes: neither engine nor worker is the larger for it."""

from pathlib import Path

import psutil
import pytest

from tests.processes import EngineProcess, engine, until, workers_of

pytestmark = pytest.mark.slow

BIG = 2_000_000
"""Bytes that each job holds when it fails."""


def test_two_hundred_jobs_that_fail_leave_nothing_in_engine_and_worker(tmp_path: Path) -> None:
    with engine(tmp_path) as running:
        processes = [psutil.Process(pid) for pid in (running.process.pid, *workers_of(running))]
        fail(running, 30)
        before = [process.memory_info().rss for process in processes]
        files = processes[0].num_fds()

        fail(running, 200)

        after = [process.memory_info().rss for process in processes]
        assert max(now - then for now, then in zip(after, before, strict=True)) < 20 * BIG
        assert processes[0].num_fds() < files + 8
        assert [process.pid for process in processes[1:]] == workers_of(running)
        assert running.ended(running.submit("a count"))["status"] == "completed"


def fail(running: EngineProcess, count: int) -> None:
    jobs = [running.submit(f"a count big={BIG} fail=1", steps=2, seed=seed) for seed in range(count)]
    assert {running.ended(job)["error"]["class"] for job in jobs} == {"error"}
    until(lambda: "keyframe_resident_tensors 0.0" in running.http.get("/metrics").text, "the worker to let go")
