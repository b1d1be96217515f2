"""Bytes named by their own hash: written so that a name never stands for less than all of them."""

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Protocol

from blake3 import blake3

from store.errors import CorruptBlob, MissingBlob, StoreUnavailable


class Blobs(Protocol):
    """Plain calls that wait for the disk: for a thread that may."""

    @property
    def name(self) -> str:
        """Two stores of one name are one store. Raises StoreUnavailable."""
        ...

    def put(self, data: bytes) -> str:
        """Keep the bytes, durably, and return their digest. Raises StoreUnavailable."""
        ...

    def get(self, digest: str) -> bytes:
        """Raises MissingBlob, CorruptBlob, StoreUnavailable."""
        ...

    def has(self, digest: str) -> bool: ...

    def path(self, digest: str) -> Path | None:
        """The file with these bytes, where there is one."""
        ...


class MemoryBlobs:
    name = "memory"

    def __init__(self) -> None:
        self._data: dict[str, bytes] = {}

    def put(self, data: bytes) -> str:
        digest = digest_of(data)
        self._data[digest] = data
        return digest

    def get(self, digest: str) -> bytes:
        if digest not in self._data:
            raise MissingBlob(digest)
        return verified(digest, self._data[digest])

    def has(self, digest: str) -> bool:
        return digest in self._data

    def path(self, digest: str) -> Path | None:
        return None


class Disk:
    """What a durable write asks of the operating system, step by step. A test hands in one that breaks."""

    def write(self, fd: int, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left) :]

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def sync_folder(self, folder: Path) -> None:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class FileBlobs:
    """A file a blob, in 256 folders by the first two characters of its digest."""

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self._root = root
        self._disk = disk or Disk()
        self._folders: set[Path] = set()

    @cached_property
    def name(self) -> str:
        with _unavailable_when_refused():
            return _name_of(self._root)

    def put(self, data: bytes) -> str:
        digest = digest_of(data)
        target = self._file(digest)
        with _unavailable_when_refused():
            self._make(target.parent)
            if not _holds(target, digest):  # one that was damaged is made anew
                self._write(target, data)
            # Also for one that was there: whoever renamed it may not have come this far yet.
            self._disk.sync_folder(target.parent)
        return digest

    def get(self, digest: str) -> bytes:
        if not self.has(digest):
            raise MissingBlob(digest)
        with _unavailable_when_refused():
            return verified(digest, self._file(digest).read_bytes())

    def has(self, digest: str) -> bool:
        return self._file(digest).is_file()

    def path(self, digest: str) -> Path | None:
        return self._file(digest) if self.has(digest) else None

    def _file(self, digest: str) -> Path:
        return self._root / digest[:2] / digest

    def _make(self, folder: Path) -> None:
        if folder in self._folders:
            return
        folder.mkdir(parents=True, exist_ok=True)
        for parent in (self._root, self._root.parent):  # also where it was there: another process may just have made it
            self._disk.sync_folder(parent)
        self._folders.add(folder)

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
            Path(name).unlink(missing_ok=True)
            raise


def _name_of(root: Path) -> str:
    """The folder's own name, drawn when it is made: whoever looks at the folder from elsewhere reads the same."""
    file = root / "name"
    if not file.is_file():
        root.mkdir(parents=True, exist_ok=True)
        fresh = root / f".{secrets.token_hex(8)}"
        fresh.write_text(secrets.token_hex(16))
        with suppress(FileExistsError):
            os.link(fresh, file)
        fresh.unlink()
    return file.read_text()


def _holds(file: Path, digest: str) -> bool:
    return file.is_file() and digest_of(file.read_bytes()) == digest


def digest_of(data: bytes) -> str:
    return blake3(data).hexdigest()


def verified(digest: str, data: bytes) -> bytes:
    """The data, if they are what the digest names. Raises CorruptBlob."""
    if digest_of(data) != digest:
        raise CorruptBlob(digest)
    return data


@contextmanager
def _unavailable_when_refused() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(f"{error.filename or 'blobs'}: {error.strerror}") from error
