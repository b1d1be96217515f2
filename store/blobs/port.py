"""What a blob store promises.

Rule 1: bytes that were put are there until `grace_s` after the last time that somebody put them, live or not. So
whoever makes a reference puts first and refers then, and a sweep's grace is longer than it takes from one to the other.
Rule 2: nothing counts references. What is live is asked of those who refer, when a sweep begins.
Rule 3: time is an argument, and has to be the time that the disk or the service stamps its files with.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from blake3 import blake3
from msgspec import Struct

from store.errors import CorruptBlob


class Stored(Struct, frozen=True):
    """A blob as it lies there. `age_s` counts from when it was last put, or later."""

    digest: str
    nbytes: int
    age_s: float


class Swept(Struct, frozen=True):
    """What a sweep removed: blobs, and bytes together with what killed writers left."""

    blobs: int = 0
    nbytes: int = 0


class Blobs(Protocol):
    """Plain calls that wait for the disk: for a thread that may."""

    @property
    def name(self) -> str:
        """Two stores of one name are one store. Raises StoreUnavailable."""
        ...

    def put(self, data: bytes) -> str:
        """Keep the bytes, durably, and return their digest. Raises StoreUnavailable."""
        return self.put_many([data])[0]

    def put_many(self, datas: Sequence[bytes]) -> list[str]:
        """The same for several at once, which may wait for the disk once."""
        digests = [digest_of(data) for data in datas]
        self.put_named(dict(zip(digests, datas, strict=True)))
        return digests

    def put_named(self, blobs: Mapping[str, bytes]) -> None:
        """The same for bytes whose digests the caller has taken already. All are durable when it returns."""
        ...

    def get(self, digest: str) -> bytes:
        """Raises MissingBlob, CorruptBlob, StoreUnavailable."""
        ...

    def has(self, digest: str) -> bool:
        """Unverified. Raises StoreUnavailable."""
        ...

    def path(self, digest: str) -> Path | None:
        """The file with these bytes and no others, where there is one."""
        ...

    def marks(self) -> set[str]:
        """Names that were left beside the blobs, for whoever sweeps. Raises StoreUnavailable."""
        ...

    def mark(self, name: str) -> None:
        """Leave one, durably, of letters, digits, dots and dashes. Raises StoreUnavailable."""
        ...

    def unmark(self, name: str) -> None:
        """Take one away, if it is there. Raises StoreUnavailable."""
        ...

    def listing(self, now: float) -> Iterator[Stored]:
        """All that is there; a blob that is kept twice may be listed twice. Raises StoreUnavailable."""
        ...

    def sweep(self, live: Container[str], *, grace_s: float, now: float, dry_run: bool = False) -> Swept:
        """Remove what is neither live nor put within the grace. A dry run only says what that would be.

        It may leave some of it for later, where much would have to be moved for little. Raises StoreUnavailable.
        """
        ...


def digest_of(data: bytes) -> str:
    return blake3(data).hexdigest()


def verified(digest: str, data: bytes) -> bytes:
    """The data, if they are what the digest names. Raises CorruptBlob."""
    try:
        found = digest_of(data)
    except TypeError as error:  # SQLite keeps whatever type somebody puts into a column
        raise CorruptBlob(digest) from error
    if found != digest:
        raise CorruptBlob(digest)
    return data


def total(parts: Iterable[Swept]) -> Swept:
    blobs = nbytes = 0
    for part in parts:
        blobs += part.blobs
        nbytes += part.nbytes
    return Swept(blobs, nbytes)
