"""How the ranks of a pool share the work of one step: a degree for each axis, checked before anything is loaded.

It is placement and no semantics: no card, loop or state names a plan. Ranks lie `cfg` by `ulysses`, of which those of
the latter are next to each other.
"""

import logging
import math
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from msgspec import Struct

from cards.errors import BadPlan, NothingToShare
from cards.family import Family

log = logging.getLogger("keyframe.cards")

CFG, ULYSSES, PATCHES = "cfg", "ulysses", "pp_patch"

MOST: Mapping[str, int] = {CFG: 2, ULYSSES: 64}
"""The axes that ranks can share along, each with its largest degree: guidance has two branches, or three of which one
costs as much as the others."""

NOBODYS: Mapping[str, str] = {PATCHES: "no model here can be run on patches of different steps"}
"""Axes that are known by name, and why no rank shares along them."""


class ParallelPlan(Struct, frozen=True):
    """`degrees` are by axis; an axis that is left out has degree one."""

    degrees: dict[str, int]

    def __str__(self) -> str:
        return ",".join(f"{axis}={degree}" for axis, degree in self.degrees.items())

    def degree(self, axis: str) -> int:
        return self.degrees.get(axis, 1)

    @property
    def ranks(self) -> int:
        return math.prod(self.degrees.values())

    def halves(self, rank: int) -> tuple[int, ...]:
        """The ranks that evaluate other branches beside this one, and this one, in the order of the branches."""
        width = self.degree(ULYSSES)
        return tuple(range(rank % width, self.ranks, width))

    def neighbours(self, rank: int) -> tuple[int, ...]:
        """The ranks that have other tokens of the same forward, and this one, in the order of the tokens."""
        width = self.degree(ULYSSES)
        return tuple(range(rank // width * width, (rank // width + 1) * width))


@runtime_checkable
class Sharing(Protocol):
    """A family whose steps ranks may share."""

    def unshared(self, axis: str, degree: int) -> str:
        """Why so many ranks cannot share along this axis after all; empty if they can."""
        ...


def parse(text: str) -> ParallelPlan:
    """`cfg=2,ulysses=2`; an axis alone has degree 2. Raises BadPlan."""
    degrees: dict[str, int] = {}
    for entry in text.split(","):
        axis, _, degree = (part.strip() for part in entry.partition("="))
        if axis in degrees:
            raise BadPlan(f"{axis} is there twice")
        degrees[axis] = _degree(axis, degree or "2")
    return ParallelPlan(degrees)


def _degree(axis: str, text: str) -> int:
    if axis not in MOST and axis not in NOBODYS:
        raise BadPlan(f"{axis!r} is no axis; there are {', '.join(MOST)}")
    if not text.isdecimal() or int(text) < 1:
        raise BadPlan(f"{axis}={text} is no degree; take a whole number from 1 on")
    if int(text) > MOST.get(axis, math.inf):
        raise BadPlan(f"{axis}={text} is more than {axis} can be shared by, which is {MOST[axis]}")
    return int(text)


def check_ranks(plan: ParallelPlan, ranks: int) -> None:
    """Raises BadPlan."""
    if plan.ranks != ranks:
        raise BadPlan(f"{plan} is for {plan.ranks} ranks and there are {ranks}; set ranks to {plan.ranks}")


def check(plan: ParallelPlan, families: Mapping[str, Family]) -> None:
    """Raises NothingToShare for an axis along which no model can be shared. Where some can, the others are named."""
    for axis, degree in plan.degrees.items():
        if degree > 1:
            _check_axis(axis, degree, families)


def shares(plan: ParallelPlan, family: Family) -> bool:
    """Whether ranks share steps of this family, along any axis."""
    return any(degree > 1 and not _reason(family, axis, degree) for axis, degree in plan.degrees.items())


def _check_axis(axis: str, degree: int, families: Mapping[str, Family]) -> None:
    reasons = {name: _reason(family, axis, degree) for name, family in families.items() if not family.card.stages}
    unshared = {name: reason for name, reason in reasons.items() if reason}
    if len(unshared) == len(reasons):
        raise NothingToShare(f"{axis}={degree}", unshared)
    for name, reason in unshared.items():
        log.warning("parallel: %s=%d: every rank runs all of %s: %s", axis, degree, name, reason)


def _reason(family: Family, axis: str, degree: int) -> str:
    if isinstance(family, Sharing):
        return family.unshared(axis, degree) or NOBODYS.get(axis, "")
    return NOBODYS.get(axis) or ("its steps have one branch" if axis == CFG else WHOLE)


WHOLE = "its forwards are run in one piece"


def branches_only(axis: str, reason: str = "") -> str:
    """What a family says whose ranks share nothing but branches; `reason`, if not even those."""
    return reason if axis == CFG else WHOLE


def heads_apart(heads: int, degree: int) -> str:
    """What stands against sharing attention of so many heads."""
    return f"its {heads} heads cannot be dealt out to {degree} ranks alike" if heads % degree else ""
