"""Packs: many blobs a file, one wait for the disk a group, and files that others may be writing or sweeping."""

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.blobs import Disk, PackBlobs, Swept, digest_of
from store.blobs.index import Index
from store.blobs.records import HEADER
from store.errors import CorruptBlob, MissingBlob, StoreUnavailable

DATAS = [b"one" * 10, b"two" * 20, b"three" * 30]
DIGESTS = [digest_of(data) for data in DATAS]


@pytest.fixture
def blobs(tmp_path: Path) -> PackBlobs:
    return PackBlobs(tmp_path)


def packs(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.pack"))


def later() -> float:
    return time.time() + 3600


def age(folder: Path) -> None:
    """Make all packs a day older."""
    for pack in packs(folder):
        os.utime(pack, (time.time() - 86400,) * 2)


def found(folder: Path, digests: list[str] = DIGESTS) -> list[bytes | None]:
    """What a process that starts now reads; None for what it knows not to be there."""
    return list(_found(PackBlobs(folder), digests))


def _found(blobs: PackBlobs, digests: list[str]) -> Iterator[bytes | None]:
    for digest in digests:
        try:
            yield blobs.get(digest)
        except (MissingBlob, CorruptBlob):
            yield None


class CountingDisk(Disk):
    def __init__(self) -> None:
        self.steps: list[str] = []

    def write(self, fd: int, data: bytes) -> None:
        self.steps.append("write")
        super().write(fd, data)

    def sync(self, fd: int) -> None:
        self.steps.append("sync")
        super().sync(fd)

    def sync_folder(self, folder: Path) -> None:
        self.steps.append(f"sync {folder.name}")
        super().sync_folder(folder)


def test_a_group_waits_for_the_disk_once(tmp_path: Path) -> None:
    disk = CountingDisk()
    blobs = PackBlobs(tmp_path / "blobs" / "packs", disk)
    blobs.put(b"first")
    assert disk.steps == ["sync blobs", f"sync {tmp_path.name}", "sync packs", "write", "write", "sync"]
    disk.steps.clear()

    blobs.put_many([*DATAS, *DATAS, b"first"])

    assert disk.steps == ["write"] * 6 + ["sync"]


@pytest.mark.parametrize("zeros", [0, 5000], ids=["cut off", "full of zeros"])
def test_a_torn_tail_hides_nothing_before_it_and_is_no_blob(tmp_path: Path, zeros: int) -> None:
    PackBlobs(tmp_path).put_many(DATAS)
    [pack] = packs(tmp_path)
    whole = pack.read_bytes()
    ends = [sum(HEADER.size + len(data) for data in DATAS[: n + 1]) for n in range(3)]

    for size in range(len(whole)):
        pack.write_bytes(whole[:size] + bytes(zeros))

        assert found(tmp_path) == [data if end <= size else None for data, end in zip(DATAS, ends, strict=True)]


def test_a_reader_picks_up_a_record_once_it_is_all_there(tmp_path: Path) -> None:
    PackBlobs(tmp_path).put_many(DATAS)
    [pack] = packs(tmp_path)
    whole = pack.read_bytes()
    pack.write_bytes(b"")
    reader = PackBlobs(tmp_path)

    with pack.open("ab", buffering=0) as file:
        for begin in range(0, len(whole), 7):
            assert not reader.has(DIGESTS[2])
            file.write(whole[begin : begin + 7])

    assert list(_found(reader, DIGESTS)) == DATAS


def test_a_flipped_bit_anywhere_costs_one_blob_and_is_seen(tmp_path: Path) -> None:
    PackBlobs(tmp_path).put_many(DATAS)
    [pack] = packs(tmp_path)
    whole = pack.read_bytes()

    for at in range(len(whole)):
        pack.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])

        blobs, lost = PackBlobs(tmp_path), 0
        for digest, data in zip(DIGESTS, DATAS, strict=True):
            try:
                assert blobs.get(digest) == data
            except (CorruptBlob, MissingBlob):
                lost += 1
        assert lost == 1


def test_one_that_was_damaged_is_made_whole_by_the_next_put(tmp_path: Path) -> None:
    PackBlobs(tmp_path).put_many(DATAS)
    [pack] = packs(tmp_path)
    pack.write_bytes(pack.read_bytes()[:-1] + b"?")
    blobs = PackBlobs(tmp_path)
    with pytest.raises(CorruptBlob, match=DIGESTS[2]):
        blobs.get(DIGESTS[2])

    blobs.put(DATAS[2])

    assert found(tmp_path) == list(_found(blobs, DIGESTS)) == DATAS


class RefusingDisk(Disk):
    """Refuses one kind of step as long as it is told to."""

    def __init__(self, step: str) -> None:
        self.step = step
        self.refuses = True
        self.synced: list[int] = []

    def write(self, fd: int, data: bytes) -> None:
        if self.refuses and self.step == "write":
            super().write(fd, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(fd, data)

    def sync(self, fd: int) -> None:
        self.synced.append(os.fstat(fd).st_ino)
        if self.refuses and self.step == "sync":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(fd)

    def sync_folder(self, folder: Path) -> None:
        if self.refuses and self.step == "sync folder":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync_folder(folder)


@pytest.mark.parametrize("step", ["write", "sync", "sync folder"])
def test_what_the_disk_refuses_is_not_there_and_leaves_nothing(tmp_path: Path, step: str) -> None:
    disk = RefusingDisk(step)
    blobs = PackBlobs(tmp_path, disk)

    for _ in range(5):
        with pytest.raises(StoreUnavailable):
            blobs.put_many(DATAS)
    assert found(tmp_path) == [None] * 3
    assert packs(tmp_path) == []

    disk.refuses = False
    blobs.put_many(DATAS)
    assert found(tmp_path) == DATAS


@pytest.mark.parametrize("step", ["write", "sync"])
def test_a_file_whose_sync_failed_is_never_asked_again(tmp_path: Path, step: str) -> None:
    disk = RefusingDisk(step)
    disk.refuses = False
    blobs, reader = PackBlobs(tmp_path, disk), PackBlobs(tmp_path)
    blobs.put(DATAS[0])
    disk.refuses = True
    with pytest.raises(StoreUnavailable):
        blobs.put(DATAS[1])
    disk.refuses = False

    blobs.put(DATAS[2])

    assert found(tmp_path) == list(_found(reader, DIGESTS)) == [DATAS[0], None, DATAS[2]]
    assert len(set(disk.synced)) == 2
    assert disk.synced[-1] != disk.synced[0]


def test_a_segment_is_left_once_it_is_large(tmp_path: Path) -> None:
    blobs = PackBlobs(tmp_path, segment_bytes=150)

    for data in (*DATAS, *DATAS):
        blobs.put(data)

    assert len(packs(tmp_path)) > 2
    assert found(tmp_path) == DATAS


def test_each_process_writes_to_a_segment_of_its_own(tmp_path: Path) -> None:
    first, second = PackBlobs(tmp_path), PackBlobs(tmp_path)

    for blobs in (first, second, first, second):
        blobs.put(b"%d" % id(blobs))

    assert len(packs(tmp_path)) == 2


def test_a_segment_that_somebody_writes_to_is_not_swept_however_old(tmp_path: Path) -> None:
    writer = PackBlobs(tmp_path)
    writer.put_many(DATAS)
    age(tmp_path)

    assert PackBlobs(tmp_path).sweep((), grace_s=60, now=time.time()) == Swept()
    writer.put(b"more")
    assert found(tmp_path) == DATAS


def test_what_is_put_again_into_an_old_segment_is_young_again(tmp_path: Path) -> None:
    writer = PackBlobs(tmp_path)
    writer.put_many(DATAS)
    age(tmp_path)

    writer.put(DATAS[1])
    writer.sweep((), grace_s=60, now=time.time())

    assert found(tmp_path)[1] == DATAS[1]


def test_a_sweep_moves_what_is_live_only_where_little_is(tmp_path: Path, blobs: PackBlobs) -> None:
    blobs.put_many(DATAS)
    [pack] = packs(tmp_path)

    assert blobs.sweep(DIGESTS[1:], grace_s=60, now=later()) == Swept()
    assert packs(tmp_path) == [pack]

    assert blobs.sweep(DIGESTS[:1], grace_s=60, now=later()).blobs == 2
    assert pack not in packs(tmp_path)
    assert found(tmp_path) == [DATAS[0], None, None]


@pytest.mark.parametrize("at", [0, HEADER.size, HEADER.size + len(DATAS[0]) + 20])
def test_a_sweep_leaves_a_damaged_segment_for_people_to_look_at(tmp_path: Path, blobs: PackBlobs, at: int) -> None:
    blobs.put_many(DATAS)
    [pack] = packs(tmp_path)
    damaged = bytearray(pack.read_bytes())
    damaged[at] ^= 1
    pack.write_bytes(damaged)

    assert blobs.sweep(DIGESTS[:1], grace_s=60, now=later()) == Swept()
    assert packs(tmp_path) == [pack]


def test_a_segment_that_nobody_wrote_to_goes(tmp_path: Path, blobs: PackBlobs) -> None:
    (tmp_path / "dead.pack").write_bytes(b"")

    blobs.sweep((), grace_s=60, now=later())

    assert packs(tmp_path) == []


class Mover:
    """Sweeps, and leaves garbage beside what it moved, so that the next sweep moves it again."""

    def __init__(self, folder: Path) -> None:
        self._blobs = PackBlobs(folder)

    def move(self) -> None:
        self._blobs.sweep(DIGESTS[:1], grace_s=0, now=later())
        self._blobs.put(b"garbage" * 1000)


def test_a_reader_finds_what_was_moved_while_it_was_not_looking(tmp_path: Path) -> None:
    PackBlobs(tmp_path).put_many(DATAS)
    reader, mover = PackBlobs(tmp_path), Mover(tmp_path)
    assert list(_found(reader, DIGESTS)) == DATAS

    for _ in range(3):
        mover.move()

    assert list(_found(reader, DIGESTS)) == [DATAS[0], None, None]
    assert [reader.has(digest) for digest in DIGESTS] == [True, False, False]


def test_a_reader_finds_what_is_moved_whenever_it_looks(tmp_path: Path) -> None:
    PackBlobs(tmp_path).put_many(DATAS)
    places, mover = Index(tmp_path).places(DIGESTS[0]), Mover(tmp_path)

    for _ in range(4):
        place = next(places)
        assert place.read() == DATAS[0]
        mover.move()
        assert place.read() is None
