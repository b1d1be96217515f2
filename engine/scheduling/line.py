"""The steps that wait, in the policy's order: kept sorted, so that looking for the next costs next to nothing."""

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator
from functools import cache
from typing import TypeAlias

from engine.scheduling.policy import Key, Policy
from engine.scheduling.ready import Group, Ready
from engine.scheduling.shares import Shares

FRESH_S, FRESH_EACH_S = 0.05, 0.0005
"""Keys are as old as this at most, or as this for each step that waits, so that making them takes little of the time:
what time does to the order is seen that much later.
"""

Entry: TypeAlias = tuple[Key, int, Ready]
Place: TypeAlias = tuple[float | Key, ...]


class Line:
    """One step a job. They stand apart by the worker that holds their jobs' tensors: one that is full is passed over
    with all that wait for it. And they do by share, if the policy goes by that: what shares have had changes with every
    placement, and which of them is next is looked up, not sorted.
    """

    def __init__(self, policy: Policy, shares: Shares) -> None:
        self._policy = policy
        self._shares = shares
        self._of: dict[str, Entry] = {}
        self._sorted: dict[str | None, dict[str, list[Entry]]] = {}
        """By home, and by share."""
        self._groups: dict[Group, dict[str, Entry]] = {}
        self._fresh_at = 0.0

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self) -> Iterator[Ready]:
        """In the order in which they came."""
        return (entry[2] for entry in self._of.values())

    def __contains__(self, job: str) -> bool:
        return job in self._of

    def add(self, ready: Ready, now: float) -> None:
        """A job's step waits. One that the job had here gives its place to it."""
        if (before := self._of.get(ready.job)) is not None:
            self._unsort(before)
        self._put(self._entry(ready, now, self.count(ready.group) + (ready.group is not None)))

    def discard(self, job: str) -> None:
        """Nothing of this job waits any more."""
        if (entry := self._of.pop(job, None)) is not None:
            self._unsort(entry)

    def find(self, job: str) -> Ready | None:
        """The job's step."""
        return entry[2] if (entry := self._of.get(job)) is not None else None

    def homes(self) -> Collection[str | None]:
        """The workers that hold something of what waits; None for what is nowhere yet."""
        return self._sorted.keys()

    def in_order(self, homes: Collection[str | None], now: float) -> Iterator[Ready]:
        """Those at home there, the most urgent first. The line must not change meanwhile."""
        if not self._policy.settled and now - self._fresh_at > max(FRESH_S, FRESH_EACH_S * len(self)):
            self._refresh(now)
        lines = [line for home in homes for line in self._sorted[home].values()]
        return (entry[2] for entry in (lines[0] if len(lines) == 1 else heapq.merge(*lines, key=self._ranked(now))))

    def together(self, group: Group, now: float) -> list[Ready]:
        """Those of a group, the most urgent first."""
        return [entry[2] for entry in sorted(self._groups.get(group, {}).values(), key=self._ranked(now))]

    def count(self, group: Group | None) -> int:
        """How many there are of a group; what is of none is alone."""
        return len(self._groups.get(group, ())) if group is not None else 1

    def _ranked(self, now: float) -> Callable[[Entry], Place]:
        """What orders steps of all shares."""
        if not self._policy.by_share:
            return _place
        had_s = cache(lambda share: self._shares.of(share, now))
        return lambda entry: (entry[0][0], had_s(entry[2].share), *entry[:2])

    def _put(self, entry: Entry) -> None:
        ready = entry[2]
        self._of[ready.job] = entry
        shares = self._sorted.setdefault(ready.home, {})
        insort(shares.setdefault(self._share(ready), []), entry, key=_place)
        if ready.group is not None:
            self._groups.setdefault(ready.group, {})[ready.job] = entry

    def _unsort(self, entry: Entry) -> None:
        ready = entry[2]
        shares, share = self._sorted[ready.home], self._share(ready)
        del shares[share][bisect_left(shares[share], _place(entry), key=_place)]
        if not shares[share]:
            del shares[share]
        if not shares:
            del self._sorted[ready.home]
        if ready.group is not None:
            group = self._groups[ready.group]
            del group[ready.job]
            if not group:
                del self._groups[ready.group]

    def _refresh(self, now: float) -> None:
        entries = [self._entry(ready, now, self.count(ready.group)) for ready in self]
        self._of.clear()
        self._sorted.clear()
        self._groups.clear()
        for entry in entries:
            self._put(entry)
        self._fresh_at = now

    def _entry(self, ready: Ready, now: float, together: int) -> Entry:
        return self._policy.key(ready, now, together), ready.order, ready

    def _share(self, ready: Ready) -> str:
        return ready.share if self._policy.by_share else ""


def _place(entry: Entry) -> Place:
    return entry[:2]
