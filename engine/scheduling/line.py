"""The steps that wait, in the policy's order: kept sorted, so that looking for the next costs next to nothing."""

import heapq
from bisect import bisect_left, insort
from collections.abc import Collection, Iterator
from typing import TypeAlias

from engine.scheduling.policy import Key, Policy
from engine.scheduling.ready import Group, Ready
from engine.scheduling.shares import Shares

FRESH_S = 0.05
"""Keys are as old as this at most: what time does to the order is seen a little later."""

Entry: TypeAlias = tuple[Key, int, Ready]


class Line:
    """One step a job. They stand apart by the worker that holds their jobs' tensors: one that is full is passed over
    with all that wait for it.
    """

    def __init__(self, policy: Policy, shares: Shares) -> None:
        self._policy = policy
        self._shares = shares
        self._of: dict[str, Entry] = {}
        self._sorted: dict[str | None, list[Entry]] = {}
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
        self._put(self._entry(ready, now, self._count(ready.group) + (ready.group is not None)))

    def discard(self, job: str) -> None:
        """Nothing of this job waits any more."""
        if (entry := self._of.pop(job, None)) is not None:
            self._unsort(entry)

    def homes(self) -> Collection[str | None]:
        """The workers that hold something of what waits; None for what is nowhere yet."""
        return self._sorted.keys()

    def in_order(self, homes: Collection[str | None], now: float) -> Iterator[Ready]:
        """Those at home there, the most urgent first. The line must not change meanwhile."""
        if not self._policy.settled and now - self._fresh_at > FRESH_S:
            self._refresh(now)
        lines = [self._sorted[home] for home in homes]
        return (entry[2] for entry in (lines[0] if len(lines) == 1 else heapq.merge(*lines, key=_place)))

    def together(self, group: Group) -> list[Ready]:
        """Those of a group, the most urgent first."""
        return [entry[2] for entry in sorted(self._groups.get(group, {}).values(), key=_place)]

    def _put(self, entry: Entry) -> None:
        ready = entry[2]
        self._of[ready.job] = entry
        insort(self._sorted.setdefault(ready.home, []), entry, key=_place)
        if ready.group is not None:
            self._groups.setdefault(ready.group, {})[ready.job] = entry

    def _unsort(self, entry: Entry) -> None:
        ready = entry[2]
        there = self._sorted[ready.home]
        del there[bisect_left(there, _place(entry), key=_place)]
        if not there:
            del self._sorted[ready.home]
        if ready.group is not None:
            group = self._groups[ready.group]
            del group[ready.job]
            if not group:
                del self._groups[ready.group]

    def _refresh(self, now: float) -> None:
        entries = [self._entry(ready, now, self._count(ready.group)) for ready in self]
        self._of.clear()
        self._sorted.clear()
        self._groups.clear()
        for entry in entries:
            self._put(entry)
        self._fresh_at = now

    def _entry(self, ready: Ready, now: float, together: int) -> Entry:
        return self._policy.key(ready, now, self._shares, together), ready.order, ready

    def _count(self, group: Group | None) -> int:
        return len(self._groups.get(group, ())) if group is not None else 1


def _place(entry: Entry) -> tuple[Key, int]:
    return entry[:2]
