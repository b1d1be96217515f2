"""What blobs in a folder have in common: the folder's own name, and the marks in it."""

from functools import cached_property
from pathlib import Path

from store.blobs.disk import Disk, make_folders, name_of, unavailable_when_refused
from store.blobs.port import Blobs

MARKS = "marks"


class FolderBlobs(Blobs):
    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self._root = root
        self._disk = disk or Disk()

    @cached_property
    def name(self) -> str:
        with unavailable_when_refused():
            return name_of(self._root)

    def marks(self) -> set[str]:
        folder = self._root / MARKS
        with unavailable_when_refused():
            return {file.name for file in folder.iterdir()} if folder.is_dir() else set()

    def mark(self, name: str) -> None:
        with unavailable_when_refused():
            make_folders(self._root, [MARKS], self._disk)
            (self._root / MARKS / name).touch()
            self._disk.sync_folder(self._root / MARKS)

    def unmark(self, name: str) -> None:
        with unavailable_when_refused():
            self._disk.unlink(self._root / MARKS / name)
