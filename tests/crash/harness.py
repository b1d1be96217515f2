"""Every point at which a process can be killed along a scenario, and every disk that a power cut can leave of it."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from msgspec import Struct

from tests.crash.operation import Moment, Operation
from tests.crash.run import Cut, FileRun, Kill, PostgresRun
from tests.crash.scenario import Scenario

CUTS = 3
"""Disks that are laid out for every operation: one without anything that was not synced, the others with some of it."""

T = TypeVar("T")


class Report(Struct, frozen=True):
    kills: int
    cuts: int
    unclean: tuple[str, ...]

    def __str__(self) -> str:
        ending = "all clean" if not self.unclean else "\n  ".join([f"{len(self.unclean)} unclean:", *self.unclean])
        return f"{self.kills} kills, {self.cuts} power cuts, {ending}"


def enumerate_points(scenario: Scenario, at_most: int | None = None) -> Report:
    """Go through all points of a scenario, or an even sample of so many of each kind."""
    with FileRun.of(scenario) as run:
        recording = run.record()
        kills = _sample(list(_kills(recording.asked)), at_most)
        cuts = _sample(list(_cuts(recording.log)), at_most)
        unclean = [*_unclean(kills, run.kill), *_unclean(cuts, lambda cut: run.cut(recording.log, cut))]
    return Report(len(kills), len(cuts), tuple(unclean))


def enumerate_statements(scenario: Scenario, server: str, at_most: int | None = None) -> Report:
    """The same on PostgreSQL: the client is killed around each of its statements, or loses its connection in one."""
    with PostgresRun.of(scenario, server) as run:
        kills = _sample(list(_kills(run.record().asked)), at_most)
        return Report(len(kills), 0, tuple(_unclean(kills, run.kill)))


def _unclean(points: Sequence[T], problems_at: Callable[[T], list[str]]) -> Iterator[str]:
    for point in points:
        if problems := problems_at(point):
            yield f"{point}: {'; '.join(problems)}"


def _kills(asked: Sequence[Operation]) -> Iterator[Kill]:
    for nth, operation in enumerate(asked):
        for moment in Moment:
            if moment is not Moment.HALFWAY or operation.has_halves:
                yield Kill(nth, moment, operation)


def _cuts(log: Sequence[Operation]) -> Iterator[Cut]:
    return (Cut(done, seed) for done in range(len(log) + 1) for seed in range(CUTS))


def _sample(points: list[T], at_most: int | None) -> list[T]:
    if at_most is None or len(points) <= at_most:
        return points
    return [points[number * len(points) // at_most] for number in range(at_most)]
