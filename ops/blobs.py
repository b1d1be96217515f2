"""The blob store as workers know it: the store's errors in the workers' words."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from store.blobs import Blobs
from store.errors import CorruptBlob, MissingBlob, StoreUnavailable
from workers.errors import BlobLost, BlobsUnavailable


class WorkerBlobs:
    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self.name = blobs.name

    def put_named(self, blobs: Mapping[str, bytes]) -> None:
        with _translated():
            self._blobs.put_named(blobs)

    def get(self, digest: str) -> bytes:
        with _translated():
            return self._blobs.get(digest)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except StoreUnavailable as error:
        raise BlobsUnavailable(str(error)) from error
    except (CorruptBlob, MissingBlob) as error:
        raise BlobLost(str(error)) from error
