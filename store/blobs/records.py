"""What a pack is made of: records that say themselves what they are, one after the other.

A record is found from the start of its file or, past damage, by its first eight bytes. Its header has a checksum of its
own, so that neither a torn tail nor zeros that a power cut left are taken for a record; its data have their digest.
"""

import os
import struct
from collections.abc import Iterator
from zlib import crc32

from msgspec import Struct

MAGIC = b"\x89KFBLOB\n"
HEADER = struct.Struct("<8s32sQI")
CHECKED = HEADER.size - 4


class Record(Struct, frozen=True):
    """Where a blob's data lie in a file; the header is before them."""

    digest: str
    at: int
    nbytes: int

    @property
    def begin(self) -> int:
        return self.at - HEADER.size

    @property
    def end(self) -> int:
        return self.at + self.nbytes


def header(digest: str, nbytes: int) -> bytes:
    checked = HEADER.pack(MAGIC, bytes.fromhex(digest), nbytes, 0)[:CHECKED]
    return checked + crc32(checked).to_bytes(4, "little")


def scan(fd: int, begin: int = 0) -> Iterator[Record]:
    """The whole records from there on. One that is not all there yet ends it: it may still be growing."""
    size = os.fstat(fd).st_size
    while 0 <= begin <= size - HEADER.size:
        record = _record(begin, os.pread(fd, HEADER.size, begin))
        if record is None:
            begin = _find(fd, begin + 1)
        elif record.end > size:
            return
        else:
            yield record
            begin = record.end


def unbroken(records: list[Record]) -> bool:
    """Whether nothing lies between them that was a record once."""
    begins = [record.begin for record in records]
    return begins == [0, *(record.end for record in records)][: len(begins)]


def _record(begin: int, read: bytes) -> Record | None:
    if len(read) < HEADER.size:
        return None
    magic, digest, nbytes, check = HEADER.unpack(read)
    if magic != MAGIC or check != crc32(read[:CHECKED]):
        return None
    return Record(digest.hex(), begin + HEADER.size, nbytes)


def _find(fd: int, begin: int, step: int = 1 << 20) -> int:
    """Where the next record may begin; -1 if nowhere."""
    while piece := os.pread(fd, step, begin):
        if (found := piece.find(MAGIC)) >= 0:
            return begin + found
        if len(piece) < len(MAGIC):
            break
        begin += len(piece) - len(MAGIC) + 1
    return -1
