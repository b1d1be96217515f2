"""Policies: in which order ready steps are given what there is. A policy has no state of its own.

Common to all: the higher priority goes first. That nothing waits for ever behind what is more urgent, more alike or
more entitled is not in the order: of the scheduler's placements some are for what has waited longest
(`Limits.ageing_s`). With ageing in the order itself, a long enough line of old steps would be all that ever runs.
"""

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from msgspec import Struct

from engine.scheduling.ready import Ready

Key: TypeAlias = tuple[float, ...]
"""By priority, and then by rule."""

SHORT_S = 30.0
"""Jobs of no more device time are short: somebody waits for them. The others are long."""

HELD_S = 2.0
"""How long a step may be passed over for larger groups."""

STRETCH = {"short": 2.0, "long": 8.0}
"""A job that has no deadline should be done within so many times its device time, and `GRACE_S`."""

GRACE_S = 1.0


class Policy(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def at_once(self) -> int | None:
        """Jobs of one share that a worker has in progress at a time; None for as many as fit."""

    @property
    def by_share(self) -> bool:
        """Whether, of the same priority, those go first whose share has had least."""
        ...

    @property
    def settled(self) -> bool:
        """Whether a step keeps its place in its share for as long as it waits: its key is no other one later."""
        ...

    def share(self, ready: Ready) -> str:
        """Whose share of the devices a job takes: device time is counted by it."""
        ...

    def key(self, ready: Ready, now: float, together: int = 1) -> Key:
        """The smallest goes first. `together` counts the ready steps of its group, itself among them."""
        ...


class Outlook(Struct, frozen=True):
    """What a rule may look at, besides the step."""

    now: float
    together: int


Rule: TypeAlias = Callable[[Ready, Outlook], Key]


class Ruled(Struct, frozen=True, kw_only=True):
    """A policy by its rule, which orders steps of the same priority."""

    name: str
    rule: Rule
    shared_by: Callable[[Ready], str] = lambda ready: ready.tenant
    at_once: int | None = None
    by_share: bool = False
    settled: bool = False

    def share(self, ready: Ready) -> str:
        return self.shared_by(ready)

    def key(self, ready: Ready, now: float, together: int = 1) -> Key:
        return (-ready.priority, *self.rule(ready, Outlook(now, together)))


def length(ready: Ready) -> str:
    """The cost class of a job: `short` or `long`."""
    return "short" if ready.served_s + ready.left_s <= SHORT_S else "long"


def due(ready: Ready) -> float:
    """When a job should be done: its deadline, or what is decent for one of its length."""
    if ready.deadline is not None:
        return ready.deadline
    return ready.submitted_at + decent_s(ready, ready.served_s + ready.left_s)


def decent_s(ready: Ready, seconds: float) -> float:
    """Within what time so much of a job should be done."""
    return GRACE_S + STRETCH[length(ready)] * seconds


def _in_order(ready: Ready, outlook: Outlook) -> Key:
    return (ready.submitted_at,)


def _in_turn(ready: Ready, outlook: Outlook) -> Key:
    return (ready.since,)


def _most_alike(ready: Ready, outlook: Outlook) -> Key:
    held = outlook.now - ready.since >= HELD_S
    return (0.0, ready.since) if held else (1.0, -outlook.together, ready.since)


def _first_due(ready: Ready, outlook: Outlook) -> Key:
    late = outlook.now + ready.left_s > due(ready)
    return (outlook.now + decent_s(ready, ready.left_s) if late else due(ready),)


FIFO = Ruled(name="fifo", rule=_in_order, shared_by=lambda ready: "", at_once=1, settled=True)
"""One job at a time, from its first step to its last."""

RUN_TO_COMPLETION = Ruled(
    name="run_to_completion", rule=_in_order, shared_by=length, at_once=1, by_share=True, settled=True
)
"""A pool of short jobs and one of long ones, each of which does one job at a time. Where both are on one device they
share it evenly."""

ROUND_ROBIN = Ruled(name="round_robin", rule=_in_turn, settled=True)
"""A step of each job in turn."""

BATCH_FIRST = Ruled(name="batch_first", rule=_most_alike)
"""The largest group first, unless a step has been passed over for too long."""

FAIR = Ruled(name="fair", rule=_in_order, by_share=True, settled=True)
"""The tenant that has had least device time lately, and its oldest job."""

DEADLINE = Ruled(name="deadline", rule=_first_due)
"""The job that is due first. One that is late anyhow is due anew, as if what is left of it had just been asked for: it
makes nothing else late. By least slack two jobs of a kind would take turns, and both be done when the later is.
"""

DEFAULT = DEADLINE.name
"""By measurement: docs/scheduling.md."""

POLICIES: Mapping[str, Policy] = {
    policy.name: policy for policy in (FIFO, RUN_TO_COMPLETION, ROUND_ROBIN, BATCH_FIRST, FAIR, DEADLINE)
}
