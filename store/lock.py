"""One engine a store: a lock that dies with the process that holds it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from store.errors import StoreLocked, StoreUnavailable


@contextmanager
def held(store: Path) -> Iterator[None]:
    """Hold the store's file for as long as the context is entered; a file beside it says which process does.

    The lock is on the store itself: another name for it or a removed note changes nothing. It is a flock, which does
    not meet SQLite's own locks; the file is closed last, since closing it would end those.
    """
    with _opened(store) as lock:
        note = store.with_name(f"{store.name}.lock")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreLocked(f"the engine with pid {_holder(note)} holds {store}: stop it first") from error
        with suppress(OSError):  # the lock holds without it: the pid is for people
            note.write_text(f"{os.getpid()}\n")
        yield


@contextmanager
def _opened(file: Path) -> Iterator[int]:
    try:
        fd = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StoreUnavailable(f"cannot write {file}: {error.strerror}") from error
    try:
        yield fd
    finally:
        os.close(fd)


def _holder(note: Path) -> str:
    try:
        return note.read_text().strip()
    except OSError:
        return "unknown"
