"""Blobs in a dict."""

import math
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path

from store.blobs.port import Blobs, Stored, Swept, verified
from store.errors import MissingBlob


class MemoryBlobs(Blobs):
    name = "memory"

    def __init__(self, now: Callable[[], float] = lambda: math.inf) -> None:
        """Without a clock no blob ever grows old."""
        self._data: dict[str, bytes] = {}
        self._put_at: dict[str, float] = {}
        self._marks: set[str] = set()
        self._now = now

    def marks(self) -> set[str]:
        return set(self._marks)

    def mark(self, name: str) -> None:
        self._marks.add(name)

    def unmark(self, name: str) -> None:
        self._marks.discard(name)

    def put_named(self, blobs: Mapping[str, bytes]) -> None:
        self._data |= blobs
        self._put_at |= dict.fromkeys(blobs, self._now())

    def get(self, digest: str) -> bytes:
        if digest not in self._data:
            raise MissingBlob(digest)
        return verified(digest, self._data[digest])

    def has(self, digest: str) -> bool:
        return digest in self._data

    def path(self, digest: str) -> Path | None:
        return None

    def listing(self, now: float) -> Iterator[Stored]:
        for digest, data in list(self._data.items()):
            yield Stored(digest, len(data), now - self._put_at[digest])

    def sweep(self, live: Container[str], *, grace_s: float, now: float, dry_run: bool = False) -> Swept:
        old = [blob for blob in self.listing(now) if blob.digest not in live and blob.age_s >= grace_s]
        if not dry_run:
            for blob in old:
                del self._data[blob.digest], self._put_at[blob.digest]
        return Swept(len(old), sum(blob.nbytes for blob in old))
