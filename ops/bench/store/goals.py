"""What was aimed at, what was seen, and whether that is enough."""

from msgspec import Struct

from ops.bench.measure import Figure


class Goal(Struct, frozen=True):
    """A line of the last table. `seen` is a ratio unless it has a unit."""

    goal: str
    what: str
    asked: str
    seen: str
    met: str


class Outcome(Struct):
    figures: list[Figure]
    goals: list[Goal]


def at_least(goal: str, what: str, seen: float | None, asked: float, unit: str = "x") -> Goal:
    met = "-" if seen is None else "yes" if seen >= asked else "no"
    return Goal(goal, what, f">= {asked:g} {unit}", _written(seen, unit), met)


def at_most(goal: str, what: str, seen: float | None, asked: float, unit: str = "x") -> Goal:
    met = "-" if seen is None else "yes" if seen <= asked else "no"
    return Goal(goal, what, f"<= {asked:.3g} {unit}", _written(seen, unit), met)


def _written(seen: float | None, unit: str) -> str:
    return "not measured" if seen is None else f"{seen:.3g} {unit}" if seen < 100 else f"{seen:.0f} {unit}"
