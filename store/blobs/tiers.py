"""One store of two: small blobs where waiting for the disk is shared, large ones where each has a place of its own."""

from collections.abc import Container, Iterator, Mapping
from pathlib import Path

from store.blobs.port import Blobs, Stored, Swept, total
from store.errors import CorruptBlob, MissingBlob

LARGE = 1 << 20
"""Bytes. From here on waiting for the disk is mostly writing."""


class Tiers(Blobs):
    """A blob is looked for in both: where it lies may have been decided by another version."""

    def __init__(self, small: Blobs, large: Blobs, limit: int = LARGE) -> None:
        self._small = small
        self._large = large
        self._limit = limit

    @property
    def name(self) -> str:
        return self._large.name

    def marks(self) -> set[str]:
        return self._large.marks()

    def mark(self, name: str) -> None:
        self._large.mark(name)

    def unmark(self, name: str) -> None:
        self._large.unmark(name)

    def put_named(self, blobs: Mapping[str, bytes]) -> None:
        small = {digest: data for digest, data in blobs.items() if len(data) < self._limit}
        large = {digest: data for digest, data in blobs.items() if len(data) >= self._limit}
        for tier, part in ((self._small, small), (self._large, large)):
            if part:
                tier.put_named(part)

    def get(self, digest: str) -> bytes:
        damaged: CorruptBlob | None = None
        for tier in (self._large, self._small):
            try:
                return tier.get(digest)
            except MissingBlob:
                continue
            except CorruptBlob as error:
                damaged = error
        raise damaged or MissingBlob(digest)

    def has(self, digest: str) -> bool:
        return self._large.has(digest) or self._small.has(digest)

    def path(self, digest: str) -> Path | None:
        return self._large.path(digest) or self._small.path(digest)

    def listing(self, now: float) -> Iterator[Stored]:
        yield from self._large.listing(now)
        yield from self._small.listing(now)

    def sweep(self, live: Container[str], *, grace_s: float, now: float, dry_run: bool = False) -> Swept:
        tiers = (self._large, self._small)
        return total(tier.sweep(live, grace_s=grace_s, now=now, dry_run=dry_run) for tier in tiers)
