"""Folders among the temporary files, of processes that end and of some that are killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.processes import EngineProcess, engine, until

HOLD = """
from workers.own_folder import own_folder
with own_folder("held") as folder:
    print(folder, flush=True)
    input()
"""


@contextmanager
def holder(among: Path) -> Iterator[tuple["subprocess.Popen[str]", Path]]:
    """A process with a folder of its own, which ends when it is told so."""
    command, pipe = [sys.executable, "-c", HOLD], subprocess.PIPE
    with subprocess.Popen(command, env=os.environ | {"TMPDIR": str(among)}, stdin=pipe, stdout=pipe, text=True) as it:
        assert it.stdout is not None
        yield it, Path(it.stdout.readline().strip())
        if it.poll() is None:
            it.communicate("\n")


def test_a_folder_goes_with_its_process(tmp_path: Path) -> None:
    with holder(tmp_path) as (_, folder):
        assert folder.parent == tmp_path
        assert folder.is_dir()

    assert not folder.exists()


def test_the_folder_of_a_killed_process_goes_when_the_next_one_is_made_and_no_other_does(tmp_path: Path) -> None:
    with holder(tmp_path) as (living, kept), holder(tmp_path) as (killed, left):
        (left / "socket").touch()
        killed.kill()
        assert killed.wait() == -signal.SIGKILL
        assert {*tmp_path.iterdir()} == {kept, left}
        (of_another := tmp_path / "keyframe-other-x").mkdir()
        (file := tmp_path / "keyframe-held-file").touch()

        with holder(tmp_path) as (_, new):
            assert {*tmp_path.iterdir()} == {kept, new, of_another, file}
        assert living.poll() is None


def joined(running: EngineProcess) -> set[int]:
    """Process ids of its workers that it has heard of."""
    return {worker["pid"] for worker in running.http.get("/v1/workers").json()["data"]}


@pytest.mark.slow
def test_workers_that_are_killed_again_and_again_leave_no_more_than_one_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TemporaryDirectory() as short:  # a socket's path may not be long
        monkeypatch.setenv("TMPDIR", short)
        with engine(tmp_path, ranks=2) as running:
            killed: set[int] = set()
            for _ in range(3):
                worker = until(lambda: next(iter(joined(running) - killed), None), "a worker")
                os.kill(worker, signal.SIGKILL)
                killed.add(worker)
            until(lambda: joined(running) - killed, "the last worker")

            there = sorted(folder.name.rsplit("-", 1)[0] for folder in Path(short).glob("keyframe-*-*"))
            assert there == ["keyframe-ranks", "keyframe-transfers"]
