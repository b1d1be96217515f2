"""The power goes at every step that a store takes on its disk, and each time what was promised is there."""

import gc
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from store.blobs import Blobs, Disk, FileBlobs, PackBlobs, Tiers, digest_of
from store.errors import MissingBlob
from tests.store.power import FragileDisk, PowerCut, QuickDisk

Open = Callable[[Path, Disk], Blobs]


def files(root: Path, disk: Disk) -> Blobs:
    return FileBlobs(root, disk)


def packs(root: Path, disk: Disk) -> Blobs:
    return PackBlobs(root, disk, segment_bytes=6000)


def tiers(root: Path, disk: Disk) -> Blobs:
    return Tiers(packs(root / "packs", disk), files(root, disk), limit=1500)


def data(number: int) -> bytes:
    return bytes([number]) * (1000 + 100 * number)


EVERY = {digest_of(data(number)): data(number) for number in range(8)}
LIVE = [digest_of(data(number)) for number in (1, 7)]
"""Few enough for a sweep to move what is live."""


class Story:
    """A life of a store: `promised` is what must be there, whatever happens next."""

    def __init__(self) -> None:
        self.promised: set[str] = set()

    def run(self, blobs: Blobs) -> None:
        self._put(blobs, 0, 1, 2)
        self._put(blobs, 3)
        self._put(blobs, 4, 6, 7, 1)
        self._sweep(blobs)
        self._put(blobs, 5, 1, 0)
        self._sweep(blobs)

    def _put(self, blobs: Blobs, *numbers: int) -> None:
        self.promised |= set(blobs.put_many([data(number) for number in numbers]))

    def _sweep(self, blobs: Blobs) -> None:
        self.promised &= set(LIVE)
        blobs.sweep(LIVE, grace_s=10, now=time.time() + 60)


def check(blobs: Blobs, promised: set[str]) -> None:
    for digest, data in EVERY.items():
        try:
            assert blobs.get(digest) == data
        except MissingBlob:
            assert digest not in promised


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("open", [packs, tiers])
def test_nothing_that_was_promised_is_lost(tmp_path: Path, open: Open, done: bool) -> None:
    for nth in count(1):
        root, story = tmp_path / f"{nth}" / "blobs", Story()
        root.mkdir(parents=True)
        disk = FragileDisk(root, nth, done=done)
        try:
            story.run(open(root, disk))
        except PowerCut:
            gc.collect()  # the dead process's locks
        else:
            assert nth > 30
            return
        disk.restore(tmp_path / f"{nth}" / "restored")
        for left in (root, tmp_path / f"{nth}" / "restored"):  # the process was killed; the whole machine was
            blobs = open(left, QuickDisk())
            check(blobs, story.promised)
            blobs.sweep(LIVE, grace_s=10, now=time.time() + 60)
            check(blobs, story.promised & set(LIVE))
            blobs.put_many(list(EVERY.values()))
            check(open(left, QuickDisk()), set(EVERY))
