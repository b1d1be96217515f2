"""The file that a process appends to: its own, under a lock that ends with the process."""

import fcntl
import os
import secrets
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from store.blobs.disk import Disk
from store.blobs.records import header

SUFFIX = ".pack"


class Segment:
    """Open for one writer. `close` gives it up, and from then on nobody appends to it."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._disk = disk
        self._digests: set[str] = set()
        self.nbytes = 0
        self._path, self._fd = _create(folder)
        self.close = weakref.finalize(self, os.close, self._fd)
        try:
            disk.sync_folder(folder)
        except BaseException:
            self.give_up()
            raise

    def append(self, blobs: Mapping[str, bytes]) -> None:
        """All or nothing, and durable. After an error the segment can only be given up."""
        fresh = {digest: data for digest, data in blobs.items() if digest not in self._digests}
        if len(fresh) < len(blobs):
            self._disk.touch(self._path)
        for digest, data in fresh.items():
            self._disk.write(self._fd, header(digest, len(data)))
            self._disk.write(self._fd, data)
        if fresh:
            self._disk.sync(self._fd)
        self._digests |= fresh.keys()
        self.nbytes = os.fstat(self._fd).st_size

    def give_up(self) -> None:
        """Take back what did not become durable, so that no reader relies on it, and close."""
        try:
            with suppress(OSError):
                if self._digests:
                    self._disk.truncate(self._fd, self.nbytes)
                else:
                    self._disk.unlink(self._path)
        finally:
            self.close()


@contextmanager
def abandoned(path: Path) -> Iterator[int | None]:
    """The segment's descriptor, with its lock, if nobody writes to it any more and nobody else sweeps it."""
    try:
        fd = os.open(path, os.O_RDWR)  # some network file systems lock only what may be written
    except FileNotFoundError:
        yield None
        return
    try:
        yield fd if _lock(fd) else None
    finally:
        os.close(fd)


def _create(folder: Path) -> tuple[Path, int]:
    while True:
        path = folder / f"{secrets.token_hex(8)}{SUFFIX}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666)
        if _lock(fd):
            return path, fd
        os.close(fd)  # a sweep was quicker than we were, and took it for a dead writer's


def _lock(fd: int) -> bool:
    """False as well if the file was removed before it was ours."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return os.fstat(fd).st_nlink > 0
