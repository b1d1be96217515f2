"""Blobs in an S3 bucket: no lock to hold, a service that may be gone, and copies instead of one file."""

import time
from pathlib import Path

import obstore
import pytest
from obstore.store import MemoryStore, ObjectStore, S3Store

from store.blobs import Blobs, Swept, digest_of, open_blobs
from store.blobs.objects import Copy, ObjectBlobs
from store.errors import BadStoreUrl, CorruptBlob, MissingBlob, StoreUnavailable
from tests.s3 import new_bucket, s3_server, variables

DATA = b"latent" * 20_000
DIGEST = digest_of(DATA)


@pytest.fixture
def bucket(s3: str, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in variables(s3).items():
        monkeypatch.setenv(name, value)
    return new_bucket(s3)


@pytest.fixture
def blobs(bucket: str) -> Blobs:
    return open_blobs(f"s3://{bucket}/some/where")


def objects(bucket: str) -> tuple[ObjectStore, list[str]]:
    store = S3Store(bucket, client_options={"allow_http": True})
    return store, sorted(found["path"] for batch in obstore.list(store) for found in batch)


def test_all_of_it_lies_under_the_prefix(bucket: str, blobs: Blobs) -> None:
    assert open_blobs(f"s3://{bucket}/some/where/").name == blobs.name
    assert open_blobs(f"s3://{bucket}").name != blobs.name
    blobs.put(DATA)

    _, [name, *keys] = objects(bucket)
    assert name == "name"
    assert len(keys) == 2
    assert all(key.startswith("some/where/") for key in keys)
    assert not open_blobs(f"s3://{bucket}").has(DIGEST)


def test_a_flipped_bit_is_seen_and_a_whole_copy_is_found(bucket: str, blobs: Blobs) -> None:
    blobs.put(DATA)
    store, keys = objects(bucket)
    obstore.put(store, next(key for key in keys if DIGEST in key), DATA[:-1] + b"?")
    with pytest.raises(CorruptBlob, match=DIGEST):
        blobs.get(DIGEST)

    blobs.put(DATA)

    assert blobs.get(DIGEST) == DATA


def test_of_what_is_live_one_copy_stays(bucket: str, blobs: Blobs) -> None:
    for _ in range(3):
        blobs.put(DATA)

    assert blobs.sweep({DIGEST}, grace_s=60, now=time.time()) == Swept()
    assert blobs.sweep({DIGEST}, grace_s=60, now=time.time() + 3600) == Swept(2, 2 * len(DATA))
    assert blobs.get(DIGEST) == DATA


def test_a_bucket_that_is_not_there_is_no_missing_blob(bucket: str) -> None:
    blobs = open_blobs(f"s3://{bucket}-not")

    for ask in (lambda: blobs.put(DATA), lambda: blobs.get(DIGEST), lambda: blobs.has(DIGEST), lambda: blobs.name):
        with pytest.raises(StoreUnavailable, match=bucket):
            ask()


def test_a_service_that_is_gone_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server() as endpoint:
        for name, value in variables(endpoint).items():
            monkeypatch.setenv(name, value)
        blobs = open_blobs(f"s3://{new_bucket(endpoint)}")
        blobs.put(DATA)

    with pytest.raises(StoreUnavailable):
        blobs.put(b"more")
    with pytest.raises(StoreUnavailable):
        blobs.get(DIGEST)
    with pytest.raises(StoreUnavailable):
        blobs.sweep((), grace_s=0, now=time.time())


class SweptMeanwhile(ObjectBlobs):
    """Somebody removes what was listed, once, before it is read, and puts something."""

    def __init__(self, store: ObjectStore, put: bytes) -> None:
        super().__init__(store)
        self._others = [ObjectBlobs(store)]
        self._put_then = put

    def _copies(self, digest: str) -> list[Copy]:
        listed = super()._copies(digest)
        while self._others:
            other = self._others.pop()
            other.sweep((), grace_s=60, now=time.time() + 3600)
            other.put(self._put_then)
        return listed


def test_a_copy_that_goes_while_it_is_read_is_looked_for_again() -> None:
    store = MemoryStore()
    ObjectBlobs(store).put(DATA)

    assert SweptMeanwhile(store, put=DATA).get(DIGEST) == DATA
    with pytest.raises(MissingBlob):
        SweptMeanwhile(store, put=b"something else").get(DIGEST)


@pytest.mark.parametrize("url", ["s3://", "s3:///prefix", "gopher://bucket/x", "http://bucket"])
def test_an_address_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(BadStoreUrl, match=url):
        open_blobs(url)


def test_opening_asks_and_makes_nothing(tmp_path: Path) -> None:
    assert not open_blobs(tmp_path / "blobs").has(DIGEST)
    open_blobs("s3://nobody-has-this-bucket")

    assert not (tmp_path / "blobs").exists()
