"""A disk that loses power at any step, and keeps no more than it was told to keep."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from store.blobs import Disk


class PowerCut(BaseException):
    """Nothing catches this, and after it the disk does nothing any more."""


class QuickDisk(Disk):
    """For what is not about durability."""

    def sync(self, fd: int) -> None:
        pass

    def sync_folder(self, folder: Path) -> None:
        pass


class FragileDisk(Disk):
    """The power goes in its `nth` step: before anything was done (of a write, half), or after all was.

    What is durable is modelled apart: contents as of a file's last sync, names as of a folder's.
    """

    def __init__(self, root: Path, nth: int, *, done: bool) -> None:
        self._root = root
        self._nth = nth
        self._done = done
        self._steps = 0
        self._contents: dict[int, bytes] = {}
        self._names: dict[Path, dict[str, int]] = {}
        self._held: list[int] = []

    def write(self, fd: int, data: bytes) -> None:
        if self._steps + 1 == self._nth and not self._done:
            super().write(fd, data[: len(data) // 2])
        with self._step():
            super().write(fd, data)

    def sync(self, fd: int) -> None:
        with self._step():
            self._held.append(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY))  # so that no other file gets its number
            self._contents[os.fstat(fd).st_ino] = os.pread(fd, os.fstat(fd).st_size, 0)

    def sync_folder(self, folder: Path) -> None:
        with self._step():
            self._names[folder] = {entry.name: entry.inode() for entry in os.scandir(folder)}

    def rename(self, source: Path, target: Path) -> None:
        with self._step():
            super().rename(source, target)

    def touch(self, path: Path) -> None:
        with self._step():
            super().touch(path)

    def truncate(self, fd: int, nbytes: int) -> None:
        with self._step():
            super().truncate(fd, nbytes)

    def unlink(self, path: Path) -> None:
        with self._step():
            super().unlink(path)

    def restore(self, target: Path) -> None:
        """Write down what a machine finds that is started again."""
        self._restore(self._root, target)
        for fd in self._held:
            os.close(fd)

    def _restore(self, folder: Path, target: Path) -> None:
        target.mkdir()
        for name, inode in self._names.get(folder, {}).items():
            if (folder / name).is_dir():
                self._restore(folder / name, target / name)
            else:
                (target / name).write_bytes(self._contents.get(inode, b""))

    @contextmanager
    def _step(self) -> Iterator[None]:
        self._steps += 1
        if self._steps > self._nth or (self._steps == self._nth and not self._done):
            raise PowerCut
        yield
        if self._steps == self._nth:
            raise PowerCut
