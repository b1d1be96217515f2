"""Several processes on one blob store: they put, read, sweep and are killed, and nobody loses what was acknowledged."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.store.blob_racer import KEPT, opened, readable

ROUNDS = 300


@contextmanager
def racer(role: str, kind: str, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "tests.store.blob_racer", role, kind, str(folder), str(ROUNDS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said_by(writer: "subprocess.Popen[str]") -> Iterator[str]:
    """The digests it printed whole."""
    assert writer.stdout is not None
    for line in writer.stdout:
        if line.endswith("\n"):
            yield line.strip()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["files", "packs", "objects", "folder"])
def test_all_that_killed_writers_said_is_there_for_one_who_reads_along(tmp_path: Path, kind: str) -> None:
    reader = opened(kind, tmp_path)
    with racer("write", kind, tmp_path) as one, racer("write", kind, tmp_path) as other:
        said = [line for _ in range(40) for line in (next(said_by(one)), next(said_by(other)))]
        assert all(readable(reader, digest) for digest in said)
        one.kill()
        other.kill()
        rest = [*said_by(one), *said_by(other)]

    assert all(readable(reader, digest) for digest in rest)
    assert all(readable(opened(kind, tmp_path), digest) for digest in (*said, *rest))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["files", "packs", "objects", "folder"])
def test_what_was_just_put_is_there_while_others_sweep_it_as_garbage(tmp_path: Path, kind: str) -> None:
    for data in KEPT:
        opened(kind, tmp_path).put_many([data, b"garbage" * 20_000])
    with racer("sweep", kind, tmp_path) as sweeper, racer("sweep", kind, tmp_path):
        with racer("put", kind, tmp_path) as one, racer("put", kind, tmp_path) as other:
            said = [putter.communicate(timeout=120)[0].split() for putter in (one, other)]
        sweeper.kill()
        assert sweeper.stdout is not None
        sweeps = len(sweeper.stdout.read())

    assert sum(int(looked) for looked, _ in said) > ROUNDS
    assert sum(int(lost) for _, lost in said) == 0
    assert sweeps > 10
