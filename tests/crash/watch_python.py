"""Python's own operations on files: the functions of `os` that change a disk, replaced by ones that pass a tap.

As with SQLite it is for good, for a process that was forked to be killed. What is written by `open` and its friends is
not seen before it is synced: the store writes by the functions of `os`, but for bundles and notes that nobody needs.
"""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests.crash.operation import Operation, Tap

Describe = Callable[..., Operation | None]
"""From the arguments of a call: the operation, or None for a call that changes nothing."""


def watch_python(tap: Tap, folder: Path) -> None:
    """From now on what Python writes, syncs, renames, links and removes in the folder goes by the tap."""
    inside = f"{folder}{os.sep}"
    seen: set[str] = set()
    for name, describe in OPERATIONS.items():
        setattr(os, name, _watched(getattr(os, name), describe, tap, inside, seen))


def _watched(real: Callable[..., Any], describe: Describe, tap: Tap, inside: str, seen: set[str]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        operation = describe(*args)
        if operation is None or not f"{operation.path}{os.sep}".startswith(inside):
            return real(*args, **kwargs)
        if operation.kind == "sync" and operation.path not in seen:
            operation = replace(operation, data=Path(operation.path).read_bytes())
        seen.add(operation.path)
        data = operation.data
        half = (lambda: real(args[0], data[: len(data) // 2], *args[2:])) if operation.kind == "write" else None
        return tap(operation, lambda: real(*args, **kwargs), half)

    return call


def _open(path: Any, flags: int, *_: Any) -> Operation | None:
    makes = flags & os.O_CREAT and isinstance(path, str | os.PathLike) and not os.path.exists(path)
    return Operation("create", os.fspath(path)) if makes else None


def _write(fd: int, data: Any) -> Operation | None:
    if not _path(fd).startswith(os.sep):  # a pipe or a socket
        return None
    appends = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND
    return _pwrite(fd, data, os.fstat(fd).st_size if appends else os.lseek(fd, 0, os.SEEK_CUR))


def _pwrite(fd: int, data: Any, offset: int) -> Operation:
    return Operation("write", _path(fd), bytes(data), offset)


def _sync(fd: int) -> Operation:
    path = _path(fd)
    return Operation("sync_folder" if os.path.isdir(path) else "sync", path)


def _path(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")


def _moving(kind: str) -> Describe:
    return lambda source, target, *_: Operation(kind, os.fspath(source), target=os.fspath(target))


def _about(kind: str) -> Describe:
    return lambda path, *_: Operation(kind, os.fspath(path))


OPERATIONS: dict[str, Describe] = {
    "open": _open,
    "write": _write,
    "pwrite": _pwrite,
    "ftruncate": lambda fd, size: Operation("truncate", _path(fd), offset=size),
    "truncate": lambda path, size: Operation("truncate", os.fspath(path), offset=size),
    "fsync": _sync,
    "fdatasync": _sync,
    "rename": _moving("rename"),
    "replace": _moving("rename"),
    "link": _moving("link"),
    "unlink": _about("unlink"),
    "remove": _about("unlink"),
    "mkdir": _about("folder"),
    "rmdir": _about("unlink"),
}
