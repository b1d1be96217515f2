"""Bytes by their digest, wherever they are: small ones in the journal's rows, larger ones in the blob store."""

from collections.abc import Sequence
from typing import Protocol

import anyio.to_thread

from store.errors import CorruptBlob
from store.journal import Journal


class BlobReader(Protocol):
    """Plain calls that wait for the disk."""

    def get(self, digest: str) -> bytes: ...
    def has(self, digest: str) -> bool: ...


class Contents:
    def __init__(self, journal: Journal, blobs: BlobReader) -> None:
        self._journal = journal
        self._blobs = blobs

    async def get(self, digest: str) -> bytes:
        """Raises MissingBlob, CorruptBlob, StoreUnavailable."""
        inline = await self._journal.blobs([digest])
        if digest in inline:
            return inline[digest]
        return await anyio.to_thread.run_sync(self._blobs.get, digest)

    async def missing(self, digests: Sequence[str]) -> list[str]:
        """Those whose bytes are not stored, or not as they were. Raises StoreUnavailable."""
        try:
            inline = await self._journal.blobs(digests)
        except CorruptBlob:
            return [digests[0]] if len(digests) == 1 else [d for one in digests for d in await self.missing([one])]
        large = [digest for digest in digests if digest not in inline]
        return await anyio.to_thread.run_sync(self._absent, large) if large else []

    def _absent(self, digests: Sequence[str]) -> list[str]:
        return [digest for digest in digests if not self._blobs.has(digest)]
