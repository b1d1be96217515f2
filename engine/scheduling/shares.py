"""Device time by tenant, so that it can be shared out fairly: what was had long ago counts for less."""

import math


class Shares:
    """`half_life_s` after it was had, device time counts half."""

    def __init__(self, half_life_s: float = 300.0) -> None:
        self._half_life_s = half_life_s
        self._had: dict[str, tuple[float, float]] = {}

    def add(self, tenant: str, seconds: float, now: float) -> None:
        """A tenant has had this much; less than nothing is a refund."""
        self._had[tenant] = (max(0.0, self.of(tenant, now) + seconds), now)

    def of(self, tenant: str, now: float) -> float:
        """Seconds that count now."""
        seconds, at = self._had.get(tenant, (0.0, now))
        return seconds * math.exp2((at - now) / self._half_life_s)
