"""What a disk may hold after a power cut, from the log of what was asked of it.

Certain is only what was synced: bytes by a sync of their file, names by a sync of their folder. Of all that came later
any part may be there, in any order: each sector of a write, each change of a size, each name.
"""

import os
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from tests.crash.operation import Operation

SECTOR = 512

Keep: TypeAlias = Callable[[], bool]
"""Asked once for each thing that was not synced: whether it survives."""

Names: TypeAlias = dict[str, int | None]
"""What a name leads to: a file by its number, or None for a folder."""


class Renaming(Struct, frozen=True):
    """A change of names that is there as a whole or not at all."""

    gone: tuple[str, ...] = ()
    made: Names = {}

    def do(self, names: Names) -> None:
        for name in self.gone:
            names.pop(name, None)
        names.update(self.made)

    def touches(self, folder: str) -> bool:
        return any(os.path.dirname(name) == folder for name in (*self.gone, *self.made))


def nothing() -> bool:
    return False


def some(seed: int) -> Keep:
    chance = random.Random(seed)
    return lambda: chance.random() < 0.5


class Disk:
    """Files by number, and the names that lead to them, each as it is for sure and with what may be."""

    def __init__(self, content: Path, folder: Path) -> None:
        """What the log calls `folder`, with `content` in it, all of it synced."""
        self._numbers = count()
        self._files: dict[int, bytearray] = {}
        self._unsynced: dict[int, list[Operation]] = {}
        self._names: dict[str, int] = {}
        """Where a live process finds which file."""
        self._root = str(folder)
        self._sure: Names = {}
        """The names that survive."""
        self._unsure: list[Renaming] = []
        for path in sorted(content.rglob("*")):
            name = str(folder / path.relative_to(content))
            self._sure[name] = None if path.is_dir() else self._new_file(name, path.read_bytes())

    def do(self, operation: Operation) -> None:
        path = operation.path
        match operation.kind:
            case "create":
                self._unsure.append(Renaming(made={path: self._new_file(path)}))
            case "write" | "truncate":
                self._unsynced[self._file(path)] += _sectors(operation)
            case "sync":
                self._sync(self._names[path] if path in self._names else self._new_file(path, operation.data))
            case "sync_folder":
                self._sync_folder(path)
            case "folder":
                self._unsure.append(Renaming(made={path: None}))
            case "rename" | "link":
                self._move(operation)
            case "unlink":
                self._names.pop(path, None)
                self._unsure.append(Renaming(gone=(path,)))

    def lay_out(self, keep: Keep) -> Iterator[tuple[str, bytes | None]]:
        """The names after a power cut with the bytes that each leads to, folders before what is in them."""
        names = dict(self._sure)
        for renaming in self._unsure:
            if keep():
                renaming.do(names)
        files = {number: self._bytes(number, keep) for number in self._files}
        folders = {self._root}
        for name in sorted(names):
            if os.path.dirname(name) not in folders:
                continue  # its folder is lost, and it with it
            if (file := names[name]) is None:
                folders.add(name)
                yield name, None
            else:
                yield name, files[file]

    def _file(self, path: str) -> int:
        """One that was made where nobody saw it has nothing in it that is sure."""
        return self._names[path] if path in self._names else self._new_file(path)

    def _new_file(self, path: str, data: bytes = b"") -> int:
        number = next(self._numbers)
        self._files[number], self._unsynced[number] = bytearray(data), []
        self._names[path] = number
        return number

    def _sync(self, number: int) -> None:
        for operation in self._unsynced[number]:
            _apply(self._files[number], operation)
        self._unsynced[number] = []

    def _sync_folder(self, folder: str) -> None:
        for renaming in self._unsure:
            if renaming.touches(folder):
                renaming.do(self._sure)
        self._unsure = [renaming for renaming in self._unsure if not renaming.touches(folder)]

    def _move(self, operation: Operation) -> None:
        file = self._file(operation.path)
        gone: tuple[str, ...] = ()
        if operation.kind == "rename":
            del self._names[operation.path]
            gone = (operation.path,)
        self._names[operation.target] = file
        self._unsure.append(Renaming(gone, {operation.target: file}))

    def _bytes(self, number: int, keep: Keep) -> bytes:
        data = bytearray(self._files[number])
        for operation in self._unsynced[number]:
            if keep():
                _apply(data, operation)
        return bytes(data)


def write_out(disk: Disk, keep: Keep, source: Path, target: Path) -> None:
    """Make the target what the source is after the power cut."""
    for name, data in disk.lay_out(keep):
        path = target / os.path.relpath(name, source)
        if data is None:
            path.mkdir(exist_ok=True)
        else:
            path.write_bytes(data)


def _sectors(operation: Operation) -> Sequence[Operation]:
    if operation.kind == "truncate":
        return [operation]
    starts = range(-(operation.offset % SECTOR), len(operation.data), SECTOR)
    return [
        Operation(
            "write", operation.path, operation.data[max(start, 0) : start + SECTOR], operation.offset + max(start, 0)
        )
        for start in starts
    ]


def _apply(data: bytearray, operation: Operation) -> None:
    end = operation.offset + len(operation.data)
    if operation.kind == "truncate":
        del data[end:]
    data.extend(bytes(max(0, end - len(data))))
    data[operation.offset : end] = operation.data
