"""What durable files need of the operating system."""

import fcntl
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from store.errors import StoreUnavailable


class Disk:
    """What changes files, step by step. A test hands in one that breaks."""

    def write(self, fd: int, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left) :]

    def sync(self, fd: int) -> None:
        """Once it has failed nothing is known of what was written to this file: nobody may ask again."""
        os.fdatasync(fd)

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def sync_folder(self, folder: Path) -> None:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def touch(self, path: Path) -> None:
        """Make it young again."""
        os.utime(path)

    def truncate(self, fd: int, nbytes: int) -> None:
        os.ftruncate(fd, nbytes)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)


def make_folders(parent: Path, names: Iterable[str], disk: Disk) -> None:
    for name in names:
        (parent / name).mkdir(parents=True, exist_ok=True)
    for folder in (parent, parent.parent):  # also where all were there: another process may just have made them
        disk.sync_folder(folder)


def name_of(root: Path) -> str:
    """The folder's own name, drawn when it is made: whoever looks at the folder from elsewhere reads the same."""
    file = root / "name"
    if not file.is_file():
        root.mkdir(parents=True, exist_ok=True)
        fresh = root / f".{secrets.token_hex(8)}"
        with fresh.open("w") as written:
            written.write(secrets.token_hex(16))
            written.flush()
            os.fsync(written.fileno())  # after a power cut two folders with empty names would be one
        with suppress(FileExistsError):
            os.link(fresh, file)
        fresh.unlink()
        Disk().sync_folder(root)
    return file.read_text()


@contextmanager
def locked(file: Path, how: int) -> Iterator[None]:
    """A lock between processes, and hosts that share the folder. It ends with whoever holds it."""
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(fd, how)
        yield
    finally:
        os.close(fd)


@contextmanager
def unavailable_when_refused() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(f"{error.filename or 'blobs'}: {error.strerror}") from error
