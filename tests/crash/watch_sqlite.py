"""SQLite's own operations, seen by a layer over its file system (a "VFS") that passes each by a tap.

The layer is a copy of the platform's: the same functions but those that change something on disk. It is put in place by
`ctypes`, for this process and for good, so it is for a process that was forked to be killed.
"""

import ctypes
import os
from collections.abc import Callable, Iterable
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int64, c_void_p, cast
from pathlib import Path
from typing import Any

from tests.crash.operation import Operation, Tap


class Unsupported(Exception):
    """The SQLite of this Python is not a library of its own, so nothing can be put under it."""


CLOSE = CFUNCTYPE(c_int, c_void_p)
WRITE = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
TRUNCATE = CFUNCTYPE(c_int, c_void_p, c_int64)
SYNC = CFUNCTYPE(c_int, c_void_p, c_int)
OPEN = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, POINTER(c_int))
DELETE = CFUNCTYPE(c_int, c_void_p, c_char_p, c_int)

OK = 0
OPENED_AS_A_LOG = 0x00000800 | 0x00004000 | 0x00080000
"""A rollback journal, a super-journal or a write-ahead log: what SQLite has made when it opens one is found again only
because the first sync is one of the folder too."""


def _fields(*pointers: str) -> list[tuple[str, Any]]:
    return [(name, c_void_p) for name in pointers]


class Methods(Structure):
    """`sqlite3_io_methods`."""

    _fields_ = (
        ("version", c_int),
        *_fields("close", "read", "write", "truncate", "sync", "size", "lock", "unlock", "reserved", "control"),
        *_fields("sector", "device", "shm_map", "shm_lock", "shm_barrier", "shm_unmap", "fetch", "unfetch"),
    )


class File(Structure):
    """`sqlite3_file`."""

    _fields_ = (("methods", POINTER(Methods)),)


class Vfs(Structure):
    """`sqlite3_vfs`."""

    _fields_ = (
        ("version", c_int),
        ("file_bytes", c_int),
        ("path_limit", c_int),
        *_fields("next", "name", "data", "open", "delete", "access", "full_path", "dl_open", "dl_error", "dl_sym"),
        *_fields("dl_close", "random", "sleep", "time", "last_error", "time64", "set_call", "get_call", "next_call"),
    )


def watch_sqlite(tap: Tap, folder: Path) -> None:
    """From now on every write, truncation, sync and removal that SQLite does in the folder goes by the tap."""
    library = sqlite_library()
    watched = _Watched(_default(library), tap, f"{folder}{os.sep}")
    _KEPT.append(watched)  # SQLite holds pointers into it
    library.sqlite3_vfs_register(ctypes.byref(watched.vfs), 1)


_KEPT: list[object] = []


def sqlite_library() -> Any:
    """The very library that `sqlite3` uses. Raises Unsupported."""
    mapped = (line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines())
    library = ctypes.CDLL(next((path for path in mapped if "libsqlite3" in path), None))
    if not hasattr(library, "sqlite3_vfs_find"):
        raise Unsupported
    return library


def _default(library: Any) -> Vfs:
    library.sqlite3_vfs_find.restype = POINTER(Vfs)
    found: Vfs = library.sqlite3_vfs_find(None).contents
    return found


class _Watched:
    def __init__(self, real: Vfs, tap: Tap, inside: str) -> None:
        self._tap = tap
        self._inside = inside
        self._paths: dict[int, str] = {}
        self._new_logs: set[str] = set()
        self._methods: dict[int, Methods] = {}
        self._real_open = OPEN(real.open)
        self._real_delete = DELETE(real.delete)
        self._callbacks = [OPEN(self._open), DELETE(self._delete)]
        self.vfs = Vfs.from_buffer_copy(real)
        self._name = ctypes.create_string_buffer(b"watched")
        self.vfs.name = ctypes.addressof(self._name)
        self.vfs.open, self.vfs.delete = (cast(callback, c_void_p) for callback in self._callbacks)

    def _open(self, vfs: int, name: int | None, file: int, flags: int, out: Any) -> int:
        path = ctypes.string_at(name).decode() if name else ""
        if not path.startswith(self._inside):
            return self._real_open(vfs, name, file, flags, out)
        if os.path.exists(path):
            code = self._real_open(vfs, name, file, flags, out)
        else:
            code = self._tap(Operation("create", path), lambda: self._real_open(vfs, name, file, flags, out))
            if flags & OPENED_AS_A_LOG:
                self._new_logs.add(path)
        if code == OK:
            self._paths[file] = path
            opened = File.from_address(file)
            opened.methods = ctypes.pointer(self._watched_methods(opened.methods))
        return code

    def _delete(self, vfs: int, name: bytes, sync_folder: int) -> int:
        path = name.decode()
        if not path.startswith(self._inside):
            return self._real_delete(vfs, name, sync_folder)
        code = self._tap(Operation("unlink", path), lambda: self._real_delete(vfs, name, sync_folder))
        if code == OK and sync_folder:
            self._synced_folder_of(path)
        return code

    def _watched_methods(self, pointer: Any) -> Methods:
        """SQLite has a few tables of methods and each file points to one: so have we, one for each of its."""
        address = ctypes.addressof(pointer.contents)
        if address not in self._methods:
            self._methods[address] = self._watch(pointer.contents)
        return self._methods[address]

    def _watch(self, real: Methods) -> Methods:
        ours = Methods.from_buffer_copy(real)
        real_write, real_truncate, real_sync = WRITE(real.write), TRUNCATE(real.truncate), SYNC(real.sync)

        def write(file: int, data: int, size: int, offset: int) -> int:
            return self._tap(
                Operation("write", self._paths[file], ctypes.string_at(data, size), offset),
                lambda: real_write(file, data, size, offset),
                lambda: real_write(file, data, size // 2, offset),
            )

        def truncate(file: int, size: int) -> int:
            operation = Operation("truncate", self._paths[file], offset=size)
            return self._tap(operation, lambda: real_truncate(file, size))

        def sync(file: int, flags: int) -> int:
            path = self._paths[file]
            code = self._tap(Operation("sync", path), lambda: real_sync(file, flags))
            if path in self._new_logs:
                self._new_logs.remove(path)
                self._synced_folder_of(path)
            return code

        methods: Iterable[tuple[str, Callable[..., int]]] = (
            ("write", WRITE(write)),
            ("truncate", TRUNCATE(truncate)),
            ("sync", SYNC(sync)),
        )
        for name, method in methods:
            self._callbacks.append(method)
            setattr(ours, name, cast(method, c_void_p))
        return ours

    def _synced_folder_of(self, path: str) -> None:
        """SQLite has just synced it by itself, below what a VFS sees."""
        self._tap(Operation("sync_folder", os.path.dirname(path)), lambda: None)
