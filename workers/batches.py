"""Units that come together, in turns."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from cards.wire import WorkPlan, WorkUnit

Arrived: TypeAlias = tuple[WorkUnit, Sequence[bytes]]
"""A unit and the frames that came with it."""


def turns(units: Iterable[Arrived], goes_together: Callable[[WorkPlan], bool]) -> Iterator[list[Arrived]]:
    """Neighbours of different jobs whose forwards may share."""
    some: list[Arrived] = []
    for unit, frames in units:
        goes = goes_together(unit.plan)
        if some and not (goes and all(other.id.job != unit.id.job for other, _ in some)):
            yield some
            some = []
        some.append((unit, frames))
        if not goes:
            yield some
            some = []
    if some:
        yield some
