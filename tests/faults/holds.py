"""What the processes of a place hold, and what they leave lying about on the machine."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
from msgspec import Struct

ENOUGH_FILES, ENOUGH_BYTES = 8, 64 << 20
"""What a process may have more of after a cell than the one in its place had before."""

SHARED_MEMORY = Path("/dev/shm")
LIBRARIES = ("torch_", "psm_", "sem.", "nccl-")
"""Whose files there could be a place's: torch's, Python's, NCCL's."""


class Held(Struct, frozen=True):
    files: int
    nbytes: int


class Holds(Struct, frozen=True):
    """`processes` are by their places. `lying` has how many there are of each kind of file."""

    processes: dict[str, Held]
    lying: Counter[str]

    def more_than(self, before: "Holds") -> Iterator[str]:
        """In words."""
        for place, now in self.processes.items():
            then = before.processes[place]
            if now.files > then.files + ENOUGH_FILES:
                yield f"the {place} has {now.files} open files and had {then.files}"
            if now.nbytes > then.nbytes + ENOUGH_BYTES:
                yield f"the {place} holds {now.nbytes >> 20} MiB and held {then.nbytes >> 20}"
        for kind, count in (self.lying - before.lying).items():
            yield f"{count} more of {kind} than before"


def seen(processes: Mapping[str, psutil.Process], temporary: Path) -> Holds:
    held = {place: Held(one.num_fds(), one.memory_info().rss) for place, one in processes.items()}
    shared = (file for file in SHARED_MEMORY.iterdir() if file.name.startswith(LIBRARIES))
    return Holds(held, Counter(map(_kind, (*temporary.iterdir(), *shared))))


def _kind(file: Path) -> str:
    """Without what makes the name of a temporary file its own."""
    return str(file.with_name(file.name.rpartition("-")[0] or file.name))
