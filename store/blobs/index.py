"""Where each packed blob lies, as far as this process has looked. It is made from the packs, and is kept nowhere."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from store.blobs.records import Record, scan
from store.blobs.segment import SUFFIX


class Place(Struct, frozen=True):
    segment: Path
    record: Record

    def read(self) -> bytes | None:
        """Unverified. None if the segment is gone, or was cut short by its writer."""
        try:
            fd = os.open(self.segment, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            data = os.pread(fd, self.record.nbytes, self.record.at)
        finally:
            os.close(fd)
        return data if len(data) == self.record.nbytes else None

    def there(self) -> bool:
        try:
            return self.segment.stat().st_size >= self.record.end
        except FileNotFoundError:
            return False


class Seen(Struct):
    """How far a segment has been read, and how long it was then."""

    end: int = 0
    size: int = 0


class Index:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[str, tuple[Place, ...]] = {}
        self._seen: dict[Path, Seen] = {}
        self._lock = threading.Lock()

    def places(self, digest: str) -> Iterator[Place]:
        """Every place where the blob may be; looks anew, when those known are used up, until nothing changes."""
        yield from self._places.get(digest, ())
        while True:
            changed = self.refresh()
            yield from self._places.get(digest, ())
            if not changed:
                return

    def refresh(self) -> bool:
        """Whether segments have come or gone: a sweep may have moved a blob behind our back while we looked."""
        with self._lock:
            there = segments(self._folder)
            gone, come = self._seen.keys() - there, there.keys() - self._seen.keys()
            if gone:
                self._forget(gone)
            for path, found in there.items():
                seen = self._seen.setdefault(path, Seen())
                if found.st_size != seen.size:
                    self._read(path, seen, found.st_size)
            return bool(gone or come)

    def _read(self, path: Path, seen: Seen, size: int) -> None:
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            for record in scan(fd, seen.end):
                self._places[record.digest] = (Place(path, record), *self._places.get(record.digest, ()))
                seen.end = record.end
            seen.size = size
        finally:
            os.close(fd)

    def _forget(self, gone: set[Path]) -> None:
        for path in gone:
            del self._seen[path]
        kept = {
            digest: tuple(place for place in places if place.segment not in gone)
            for digest, places in self._places.items()
        }
        self._places = {digest: places for digest, places in kept.items() if places}


def segments(folder: Path) -> dict[Path, os.stat_result]:
    found: dict[Path, os.stat_result] = {}
    if folder.is_dir():
        for path in folder.glob(f"*{SUFFIX}"):
            try:
                found[path] = path.stat()
            except FileNotFoundError:
                continue  # swept since the folder was read
    return found
