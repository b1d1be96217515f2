"""What every blob store promises, asked of each."""

import threading
from pathlib import Path

import pytest
from blake3 import blake3

from store.blobs import Blobs, FileBlobs, MemoryBlobs
from store.errors import MissingBlob


@pytest.fixture(params=["memory", "files"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    return MemoryBlobs() if request.param == "memory" else FileBlobs(tmp_path / "blobs")


@pytest.mark.parametrize("data", [b"", b"\x00", b"latent" * 100_000], ids=["empty", "one byte", "large"])
def test_bytes_come_back_under_their_hash(blobs: Blobs, data: bytes) -> None:
    digest = blobs.put(data)

    assert digest == blake3(data).hexdigest()
    assert blobs.has(digest)
    assert blobs.get(digest) == data


def test_the_same_bytes_are_kept_once(blobs: Blobs) -> None:
    assert blobs.put(b"again") == blobs.put(b"again")
    assert blobs.get(blobs.put(b"again")) == b"again"


def test_what_nobody_put_is_missing(blobs: Blobs) -> None:
    digest = blake3(b"nobody's").hexdigest()

    assert not blobs.has(digest)
    assert blobs.path(digest) is None
    with pytest.raises(MissingBlob, match=digest):
        blobs.get(digest)


def test_a_path_leads_to_the_bytes(blobs: Blobs) -> None:
    path = blobs.path(blobs.put(b"clip"))

    assert path is None or path.read_bytes() == b"clip"


def test_threads_may_put_the_same_bytes_at_once(blobs: Blobs) -> None:
    threads = [threading.Thread(target=blobs.put, args=(b"same" * 10_000,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert blobs.get(blake3(b"same" * 10_000).hexdigest()) == b"same" * 10_000
