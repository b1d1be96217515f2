"""Device time by share, so that it can be shared out fairly: what was had long ago counts for less."""

import math
from collections import OrderedDict
from itertools import islice

LEAST_S = 1e-6
"""What counts for less is forgotten. No step is as short."""

SWEPT = 2
"""Shares that are looked at with each addition: one more than it may bring."""


class Shares:
    """`half_life_s` after it was had, device time counts half."""

    def __init__(self, half_life_s: float = 300.0) -> None:
        self._half_life_s = half_life_s
        self._had: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        """Those that have had anything that counts, and a few that had."""
        return len(self._had)

    def add(self, share: str, seconds: float, now: float) -> None:
        """A share has had this much; less than nothing is taken off."""
        self._put(share, self.of(share, now) + seconds, now)

    def refund(self, share: str, seconds: float, at: float, now: float) -> None:
        """It was thought to have this much `at` that time, and has not: what counts of it by now is taken off."""
        self._put(share, self.of(share, now) - self._faded(seconds, now - at), now)

    def _put(self, share: str, seconds: float, now: float) -> None:
        self._had[share] = (max(0.0, seconds), now)
        for other in list(islice(self._had, SWEPT)):
            self._had.move_to_end(other)  # those come first that have not been looked at for longest
            if self.of(other, now) < LEAST_S:
                del self._had[other]

    def of(self, share: str, now: float) -> float:
        """Seconds that count now."""
        seconds, at = self._had.get(share, (0.0, now))
        return self._faded(seconds, now - at)

    def _faded(self, seconds: float, for_s: float) -> float:
        return seconds * math.exp2(-for_s / self._half_life_s)
