"""Files that are written so that a crash, a full disk or a flipped bit is never taken for the bytes that were meant."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from blake3 import blake3

from store.blobs import Disk, FileBlobs
from store.errors import CorruptBlob, StoreUnavailable
from tests.store.disks import fill

DATA = b"latent" * 1000
DIGEST = blake3(DATA).hexdigest()


class Crash(BaseException):
    """The power is gone: nothing catches this."""


class BreakingDisk(Disk):
    """Breaks at one step, before it is done or after; a write stops half-way."""

    def __init__(self, step: str, error: BaseException, *, done: bool) -> None:
        self._step = step
        self._error = error
        self._done = done

    def write(self, fd: int, data: bytes) -> None:
        if self._step == "write":
            data = data if self._done else data[: len(data) // 2]
        super().write(fd, data)
        if self._step == "write":
            raise self._error

    def sync(self, fd: int) -> None:
        with self._breaking("sync"):
            super().sync(fd)

    def rename(self, source: Path, target: Path) -> None:
        with self._breaking("rename"):
            super().rename(source, target)

    def sync_folder(self, folder: Path) -> None:
        with self._breaking("sync folder" if folder.name == DIGEST[:2] else "sync root"):
            super().sync_folder(folder)

    @contextmanager
    def _breaking(self, step: str) -> Iterator[None]:
        if step == self._step and not self._done:
            raise self._error
        yield
        if step == self._step:
            raise self._error


def broken(root: Path, step: str, error: BaseException, *, done: bool = False) -> FileBlobs:
    return FileBlobs(root, BreakingDisk(step, error, done=done))


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file() and path.name != ".lock"]


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", ["sync root", "write", "sync", "rename", "sync folder"])
def test_a_crash_leaves_all_of_a_blob_or_none(tmp_path: Path, step: str, done: bool) -> None:
    with pytest.raises(Crash):
        broken(tmp_path, step, Crash(), done=done).put(DATA)

    after = FileBlobs(tmp_path)
    assert not after.has(DIGEST) or after.get(DIGEST) == DATA
    assert after.get(after.put(DATA)) == DATA


@pytest.mark.parametrize("step", ["write", "sync", "rename"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_what_the_disk_refuses_is_not_there(tmp_path: Path, step: str, code: int) -> None:
    with pytest.raises(StoreUnavailable, match=os.strerror(code)):
        broken(tmp_path, step, OSError(code, os.strerror(code))).put(DATA)

    assert files(tmp_path) == []


def test_a_blob_is_told_of_only_when_its_folder_is_on_disk(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        broken(tmp_path, "sync folder", OSError(errno.EIO, "I/O error")).put(DATA)


def test_one_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    FileBlobs(tmp_path).put(DATA)

    assert broken(tmp_path, "write", Crash()).put(DATA) == DIGEST
    assert len(files(tmp_path)) == 1


@pytest.mark.parametrize("damage", [DATA[:-1], DATA + b"\x00", b"L" + DATA[1:], b""])
def test_damage_is_noticed(tmp_path: Path, damage: bytes) -> None:
    blobs = FileBlobs(tmp_path)
    path = blobs.path(blobs.put(DATA))
    assert path is not None

    path.write_bytes(damage)

    with pytest.raises(CorruptBlob, match=DIGEST):
        blobs.get(DIGEST)


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(StoreUnavailable, match=r"file.*Not a directory"):
        FileBlobs(tmp_path / "file" / "blobs").put(DATA)


def test_looking_makes_nothing(tmp_path: Path) -> None:
    assert not FileBlobs(tmp_path / "blobs").has(DIGEST)

    assert not (tmp_path / "blobs").exists()


class NotingDisk(Disk):
    def __init__(self) -> None:
        self.steps: list[str] = []

    def write(self, fd: int, data: bytes) -> None:
        self.steps.append("write")
        super().write(fd, data)

    def sync(self, fd: int) -> None:
        self.steps.append("sync")
        super().sync(fd)

    def rename(self, source: Path, target: Path) -> None:
        self.steps.append("rename")
        super().rename(source, target)

    def sync_folder(self, folder: Path) -> None:
        self.steps.append(f"sync {folder.name}")
        super().sync_folder(folder)


def test_each_step_is_on_disk_before_the_next_relies_on_it(tmp_path: Path) -> None:
    disk = NotingDisk()
    blobs = FileBlobs(tmp_path / "data" / "blobs", disk)

    blobs.put(DATA)
    assert disk.steps == ["sync blobs", "sync data", "write", "sync", "rename", f"sync {DIGEST[:2]}"]

    disk.steps.clear()
    blobs.put(DATA)
    assert disk.steps == [f"sync {DIGEST[:2]}"]


def test_a_full_disk_takes_blobs_again_once_there_is_room(small_disk: Path) -> None:
    blobs = FileBlobs(small_disk / "blobs")
    large = bytes(1_000_000)
    blobs.put(DATA)
    fill(small_disk / "filler")

    with pytest.raises(StoreUnavailable, match="No space left"):
        blobs.put(large)
    (small_disk / "filler").unlink()

    assert blobs.get(blobs.put(large)) == large
    assert len(files(small_disk)) == 2


def test_one_that_was_damaged_is_made_whole_by_the_next_put(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    path = blobs.path(blobs.put(DATA))
    assert path is not None
    path.write_bytes(DATA[:-1])

    assert FileBlobs(tmp_path).put(DATA) == DIGEST
    assert blobs.get(DIGEST) == DATA


def test_a_folder_keeps_its_name_and_no_two_share_one(tmp_path: Path) -> None:
    name = FileBlobs(tmp_path / "a").name

    assert FileBlobs(tmp_path / "a").name == name
    assert FileBlobs(tmp_path / "b").name != name
