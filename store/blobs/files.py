"""A file a blob, for blobs that are worth one."""

import fcntl
import os
import re
import tempfile
from collections.abc import Container, Iterator, Mapping
from pathlib import Path

from store.blobs.disk import Disk, locked, make_folders, unavailable_when_refused
from store.blobs.folder import FolderBlobs
from store.blobs.port import Stored, Swept, digest_of, total, verified
from store.errors import MissingBlob

FOLDERS = [f"{number:02x}" for number in range(256)]
"""All are made by the first put: a put that makes one waits for the disk once more."""
BLOB = re.compile(r"[0-9a-f]{64}")
UNFINISHED = re.compile(r"\.[a-z0-9_]{8}")
"""What a writer is at, or was when it was killed."""


class FileBlobs(FolderBlobs):
    """In 256 folders by the first two characters of the digest.

    A put holds its folder's lock together with other puts, a sweep alone, folder by folder: a file is never removed
    between somebody's finding it and his making it young again.
    """

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        super().__init__(root, disk)
        self._made = False

    def put_named(self, blobs: Mapping[str, bytes]) -> None:
        with unavailable_when_refused():
            for digest, data in blobs.items():
                self._put(digest, data)

    def get(self, digest: str) -> bytes:
        with unavailable_when_refused():
            try:
                data = self._file(digest).read_bytes()
            except FileNotFoundError:
                raise MissingBlob(digest) from None
        return verified(digest, data)

    def has(self, digest: str) -> bool:
        return self._file(digest).is_file()

    def path(self, digest: str) -> Path | None:
        return self._file(digest) if self.has(digest) else None

    def listing(self, now: float) -> Iterator[Stored]:
        with unavailable_when_refused():
            for folder in self._there():
                for file, found in _files(folder, now):
                    if BLOB.fullmatch(file.name):
                        yield found

    def sweep(self, live: Container[str], *, grace_s: float, now: float, dry_run: bool = False) -> Swept:
        with unavailable_when_refused():
            return total([self._sweep(folder, live, grace_s, now, dry_run) for folder in self._there()])

    def _file(self, digest: str) -> Path:
        return self._root / digest[:2] / digest

    def _there(self) -> list[Path]:
        return [folder for name in FOLDERS if (folder := self._root / name).is_dir()]

    def _put(self, digest: str, data: bytes) -> None:
        target = self._file(digest)
        folder = target.parent
        if not self._made:
            make_folders(self._root, FOLDERS, self._disk)
            self._made = True
        with locked(folder / ".lock", fcntl.LOCK_SH):
            if _holds(target, digest):  # one that was damaged is made anew
                self._disk.touch(target)
            else:
                self._write(target, data)
            # Also for one that was there: whoever renamed it may not have come this far yet.
            self._disk.sync_folder(folder)

    def _write(self, target: Path, data: bytes) -> None:
        fd, name = tempfile.mkstemp(dir=target.parent, prefix=".")
        try:
            try:
                self._disk.write(fd, data)
                self._disk.sync(fd)
            finally:
                os.close(fd)
            self._disk.rename(Path(name), target)
        except BaseException:
            self._disk.unlink(Path(name))
            raise

    def _sweep(self, folder: Path, live: Container[str], grace_s: float, now: float, dry_run: bool) -> Swept:
        with locked(folder / ".lock", fcntl.LOCK_EX):
            old = [file for file in _files(folder, now) if file[1].age_s >= grace_s and file[0].name not in live]
            if not dry_run:
                for file, _ in old:
                    self._disk.unlink(file)
        blobs = sum(1 for file, _ in old if BLOB.fullmatch(file.name))
        return Swept(blobs, sum(found.nbytes for _, found in old))


def _files(folder: Path, now: float) -> Iterator[tuple[Path, Stored]]:
    """Blobs and what is to become one; whatever else somebody may have put there is not ours."""
    for file in folder.iterdir():
        if BLOB.fullmatch(file.name) or UNFINISHED.fullmatch(file.name):
            try:
                found = file.stat()
            except FileNotFoundError:
                continue  # renamed, or swept by another
            yield file, Stored(file.name, found.st_size, now - found.st_mtime)


def _holds(file: Path, digest: str) -> bool:
    return file.is_file() and digest_of(file.read_bytes()) == digest
