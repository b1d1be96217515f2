"""What a scenario is: something a process does to a store until it is killed, and what must be true afterwards."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

Tell: TypeAlias = Callable[[str], None]
"""Notes a line where it outlives the process."""


class Place(Struct, frozen=True):
    """Where a store is: its folder, and the URL of its journal."""

    folder: Path
    url: str = ""

    @property
    def journal(self) -> str:
        return self.url or f"sqlite:///{self.folder}/store.db"

    @property
    def blobs(self) -> Path:
        return self.folder / "blobs"


Prepare: TypeAlias = Callable[[Place], Awaitable[None]]


async def nothing(place: Place) -> None:
    """What most is prepared with where there is to be nothing."""


class Scenario(Struct, frozen=True):
    """`check` recovers what `live` left when it was killed. It is told the lines that were noted by then, and returns
    what is wrong, in a line each.
    """

    live: Callable[[Place, Tell], Awaitable[None]]
    check: Callable[[Place, Sequence[str]], Awaitable[list[str]]]
    prepare: Prepare = nothing
    steady: bool = True
    """Whether it does the same operations in the same order every time."""
