"""Bytes by their digest, wherever they are: small ones in the journal's rows, larger ones in the blob store."""

from collections.abc import Sequence
from typing import Protocol

import anyio.to_thread

from store.errors import CorruptBlob, MissingBlob
from store.journal import Journal


class BlobStore(Protocol):
    """Plain calls that wait for the disk."""

    def get(self, digest: str) -> bytes: ...
    def put(self, data: bytes) -> str: ...


class Contents:
    def __init__(self, journal: Journal, blobs: BlobStore) -> None:
        self._journal = journal
        self._blobs = blobs

    async def get(self, digest: str) -> bytes:
        """Raises MissingBlob, CorruptBlob, StoreUnavailable."""
        inline = await self._journal.blobs([digest])
        if digest in inline:
            return inline[digest]
        return await anyio.to_thread.run_sync(self._blobs.get, digest)

    async def keep(self, digests: Sequence[str]) -> list[str]:
        """See to it that the bytes stay for as long as a sweep waits: somebody is about to refer to them.

        Returns those that are not there, or not as they were. Raises StoreUnavailable.
        """
        inline = await self._journal.keep_blobs(digests)
        large = [digest for digest in digests if digest not in inline]
        damaged = [digest for digest in inline if not await self._is_whole(digest)]
        return damaged + (await anyio.to_thread.run_sync(self._put_again, large) if large else [])

    async def _is_whole(self, digest: str) -> bool:
        try:
            return digest in await self._journal.blobs([digest])
        except CorruptBlob:
            return False

    def _put_again(self, digests: Sequence[str]) -> list[str]:
        """A put of what is there makes it young again."""
        absent = []
        for digest in digests:
            try:
                self._blobs.put(self._blobs.get(digest))
            except (MissingBlob, CorruptBlob):
                absent.append(digest)
        return absent
