"""The folder that an engine and its workers share: small blobs in packs, large ones in files."""

import os
import time
from pathlib import Path

import pytest

from store.blobs import FileBlobs, PackBlobs, Swept, digest_of, open_blobs
from store.blobs.tiers import LARGE
from store.errors import CorruptBlob

SMALL_DATA, LARGE_DATA = bytes(LARGE - 1), bytes(LARGE)


def age(root: Path) -> None:
    for path in root.rglob("*"):
        os.utime(path, (time.time() - 86400,) * 2)


def test_small_ones_share_a_pack_and_large_ones_have_files(tmp_path: Path) -> None:
    blobs = open_blobs(tmp_path)

    small, large = blobs.put_many([SMALL_DATA, LARGE_DATA])

    assert blobs.path(small) is None
    assert blobs.path(large) == tmp_path / large[:2] / large
    assert PackBlobs(tmp_path / "packs").get(small) == SMALL_DATA
    assert FileBlobs(tmp_path).get(large) == LARGE_DATA


def test_a_folder_of_the_first_release_is_read_as_it_is(tmp_path: Path) -> None:
    """It had a file for every blob."""
    old = FileBlobs(tmp_path)
    digests = old.put_many([SMALL_DATA, LARGE_DATA])

    blobs = open_blobs(tmp_path)

    assert blobs.name == old.name
    assert [blobs.get(digest) for digest in digests] == [SMALL_DATA, LARGE_DATA]
    assert {stored.digest for stored in blobs.listing(0)} == set(digests)
    assert blobs.sweep((), grace_s=0, now=time.time() + 60).blobs == 2


def test_an_old_file_that_was_damaged_is_made_whole_by_the_next_put(tmp_path: Path) -> None:
    path = FileBlobs(tmp_path).path(FileBlobs(tmp_path).put(SMALL_DATA))
    assert path is not None
    path.write_bytes(b"damaged")
    blobs = open_blobs(tmp_path)
    with pytest.raises(CorruptBlob):
        blobs.get(digest_of(SMALL_DATA))

    assert blobs.get(blobs.put(SMALL_DATA)) == SMALL_DATA


def test_a_sweep_takes_what_killed_writers_left_and_nothing_that_is_not_ours(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    folder = tmp_path / blobs.put(LARGE_DATA)[:2]
    name = blobs.name
    (folder / ".abcd_123").write_bytes(b"torn")
    for other in (tmp_path / "notes.txt", folder / "notes.txt", folder / ".nfs0000000000000001", tmp_path / "ab.txt"):
        other.write_bytes(b"not ours")

    assert blobs.sweep((), grace_s=60, now=time.time()) == Swept()
    age(tmp_path)
    assert blobs.sweep((), grace_s=60, now=time.time()) == Swept(1, len(LARGE_DATA) + 4)

    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"name", ".lock", "notes.txt", ".nfs0000000000000001", "ab.txt"}
    assert FileBlobs(tmp_path).name == name
