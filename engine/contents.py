"""Bytes by their digest, wherever they are: small ones in the journal's rows, larger ones in the blob store."""

from typing import Protocol

import anyio.to_thread

from store.journal import Journal


class BlobReader(Protocol):
    """Plain calls that wait for the disk."""

    def get(self, digest: str) -> bytes: ...


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
