"""Bytes named by their own hash: written so that a name never stands for less than all of them.

One port (`port.py`), and what keeps it: `memory`, `files` (a file a blob), `packs` (many blobs a file), `objects` (S3),
and `tiers`, which has small ones in packs and large ones in files. `open.py` knows which of them an address means.
"""

from store.blobs.disk import Disk
from store.blobs.files import FileBlobs
from store.blobs.memory import MemoryBlobs
from store.blobs.open import open_blobs
from store.blobs.packs import PackBlobs
from store.blobs.port import Blobs, Stored, Swept, digest_of, verified
from store.blobs.tiers import Tiers

__all__ = [
    "Blobs",
    "Disk",
    "FileBlobs",
    "MemoryBlobs",
    "PackBlobs",
    "Stored",
    "Swept",
    "Tiers",
    "digest_of",
    "open_blobs",
    "verified",
]
