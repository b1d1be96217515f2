"""Many blobs a file, for those that are too small to wait for the disk one by one.

Rule 1: a segment belongs to the process that made it, and only that one appends. What is there is never changed.
Rule 2: a put appends also what lies in another's segment: that may not be durable, and its segment may be about to go.
Rule 3: a segment goes when nobody writes to it, all of it is older than the grace, and what is live was put elsewhere.
So a put and a sweep never touch the same file, and neither waits for the other.
"""

import os
import threading
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from store.blobs.disk import Disk, make_folders, unavailable_when_refused
from store.blobs.folder import FolderBlobs
from store.blobs.index import Index, segments
from store.blobs.port import Stored, Swept, digest_of, total
from store.blobs.records import Record, scan, unbroken
from store.blobs.segment import Segment, abandoned
from store.errors import CorruptBlob, MissingBlob

SEGMENT_BYTES = 64 << 20
WORTH_MOVING = 0.5
"""A segment of which no more than this share is live is made anew."""


class PackBlobs(FolderBlobs):
    def __init__(self, folder: Path, disk: Disk | None = None, segment_bytes: int = SEGMENT_BYTES) -> None:
        super().__init__(folder, disk)
        self._segment_bytes = segment_bytes
        self._index = Index(folder)
        self._segment: Segment | None = None
        self._writing = threading.Lock()
        self._made = False

    def put_named(self, blobs: Mapping[str, bytes]) -> None:
        if not blobs:
            return
        with self._writing, unavailable_when_refused():
            segment = self._segment or self._begin()
            try:
                segment.append(blobs)
            except BaseException:
                self._segment = None
                segment.give_up()
                raise
            if segment.nbytes >= self._segment_bytes:
                self._end()

    def get(self, digest: str) -> bytes:
        damaged = False
        with unavailable_when_refused():
            for place in self._index.places(digest):
                if (data := place.read()) is not None:
                    if digest_of(data) == digest:
                        return data
                    damaged = True
        raise CorruptBlob(digest) if damaged else MissingBlob(digest)

    def has(self, digest: str) -> bool:
        with unavailable_when_refused():
            return any(place.there() for place in self._index.places(digest))

    def path(self, digest: str) -> Path | None:
        return None

    def listing(self, now: float) -> Iterator[Stored]:
        with unavailable_when_refused():
            for path, found in segments(self._root).items():
                with suppress(FileNotFoundError), path.open("rb") as file:
                    for record in scan(file.fileno()):
                        yield Stored(record.digest, record.nbytes, now - found.st_mtime)

    def sweep(self, live: Container[str], *, grace_s: float, now: float, dry_run: bool = False) -> Swept:
        with unavailable_when_refused():
            with self._writing:
                self._end()
            return total([self._sweep(path, live, now - grace_s, dry_run) for path in segments(self._root)])

    def _begin(self) -> Segment:
        if not self._made:
            make_folders(self._root.parent, [self._root.name], self._disk)
            self._made = True
        self._segment = Segment(self._root, self._disk)
        return self._segment

    def _end(self) -> None:
        if self._segment:
            self._segment.close()
            self._segment = None

    def _sweep(self, path: Path, live: Container[str], before: float, dry_run: bool) -> Swept:
        with abandoned(path) as fd:
            if fd is None or (found := os.fstat(fd)).st_mtime > before:
                return Swept()
            records = list(scan(fd))
            kept = [record for record in records if record.digest in live]
            nbytes = sum(record.end - record.begin for record in kept)
            if nbytes > WORTH_MOVING * found.st_size:
                return Swept()
            moved = {record.digest: os.pread(fd, record.nbytes, record.at) for record in kept}
            if _damaged(records, moved):
                return Swept()
            if not dry_run:
                if moved:
                    self.put_named(moved)
                self._disk.unlink(path)
            return Swept(len(records) - len(kept), found.st_size - nbytes)


def _damaged(records: list[Record], moved: Mapping[str, bytes]) -> bool:
    """What is not as it was written stays, for people to look at."""
    return not unbroken(records) or any(digest_of(data) != digest for digest, data in moved.items())
