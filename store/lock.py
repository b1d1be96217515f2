"""One engine a store: a lock that dies with the process that holds it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from store.errors import StoreLocked, StoreUnavailable


@contextmanager
def held(lock: Path, store: Path) -> Iterator[None]:
    """Hold the lock file, which names this process, for as long as the context is entered."""
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StoreUnavailable(f"cannot write {lock}: {error.strerror}") from error
    try:
        _take(fd, store)
        yield
    finally:
        os.close(fd)


def _take(fd: int, store: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        pid = os.pread(fd, 20, 0).decode().strip()
        raise StoreLocked(f"the engine with pid {pid} holds {store}: stop it first") from error
    with suppress(OSError):  # the lock holds without it: the pid is for people
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
