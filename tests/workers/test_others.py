"""The processes of the other ranks: how they end is known, also before the pool is ready."""

import subprocess
import sys
from pathlib import Path
from queue import Queue

import pytest

from workers.process import Others, WorkerSettings

LEAD = """
import sys
from tests.workers.units import CountingBlobs
from workers.process import WorkerSettings, lead

ends = [sys.executable, "-c", "raise SystemExit(3)"]
worker = WorkerSettings(connect=sys.argv[1], families=("tests.toy",), ranks=2, rank_timeout_s=1e6)
lead(worker, CountingBlobs(), lambda settings, rank: ends)
"""


@pytest.mark.slow
def test_a_rank_that_ends_before_the_pool_is_ready_ends_it_with_the_reason(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LEAD, f"ipc://{tmp_path}/w"], capture_output=True, text=True, timeout=120, check=False
    )

    assert ended.returncode == 1
    assert "rank 1 ended with 3 before the pool was ready" in ended.stderr


def test_how_a_rank_ended_is_told_to_whoever_is_there_by_then() -> None:
    told = Queue[str]()
    others = Others()
    others.start(lambda settings, rank: [sys.executable, "-c", "raise SystemExit(3)"], WorkerSettings(connect=""), 1)
    others.ended = told.put

    assert told.get(timeout=60) == "rank 1 ended with 3"
