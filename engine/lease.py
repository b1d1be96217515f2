"""An engine's lease on a store that others write to as well: while it is renewed, they leave its jobs alone.

Rule 1: it runs out by the database's clock and no other.
Rule 2: its holder counts from when it *sent* the renewal, on a clock that nobody sets: it stops before anyone else
    may begin. What it still writes after that, the database refuses.
"""

import logging
from collections.abc import Callable, Sequence

import anyio

from engine.clock import Clock
from store.errors import StoreError
from store.journal import Journal

log = logging.getLogger("keyframe.lease")

RENEWALS = 3
"""How often a lease is renewed in the time that it lasts."""


class Lease:
    """`models` says which models this engine has workers for; `lapsed` is called when the lease has run out."""

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        *,
        engine: str,
        ttl_s: float,
        url: str,
        models: Callable[[], Sequence[str]],
        lapsed: Callable[[], None],
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._engine = engine
        self._ttl_s = ttl_s
        self._url = url
        self._models = models
        self._lapsed = lapsed
        self._until = float("-inf")
        self._had = False
        self._ended = False
        self._turn = anyio.Lock()

    @property
    def held(self) -> bool:
        return not self._journal.shared or self._clock.monotonic() < self._until

    @property
    def name(self) -> str | None:
        """What appends are written under; None where nobody else can write."""
        return self._engine if self._journal.shared else None

    @property
    def pause_s(self) -> float:
        """Until the next renewal."""
        return self._ttl_s / RENEWALS / (1 if self.held else RENEWALS)

    def check(self) -> bool:
        """Whether it is held; says so once if it is not any more."""
        if self._had and not self.held:
            self._had = False
            log.warning("the lease of %s has run out: its jobs are anyone's", self._engine)
            self._lapsed()
        return self.held

    async def renew(self) -> None:
        """Take the lease, or keep it. One that had run out is a new one: what was held under it is not any more."""
        async with self._turn:
            await self._renew()

    async def _renew(self) -> None:
        self.check()
        if self._ended:
            return
        sent = self._clock.monotonic()
        try:
            await self._journal.hold_lease(self._engine, ttl_s=self._ttl_s, url=self._url, models=self._models())
        except StoreError as error:
            log.warning("cannot renew the lease of %s: %s", self._engine, error)
            return
        self.check()  # it may have run out while the renewal was on its way
        self._until = sent + self._ttl_s
        self._had = True

    async def end(self) -> None:
        """Others may take over at once."""
        self._ended, self._had = True, False
        async with self._turn:  # a renewal that is on its way would come behind
            await self._end()

    async def _end(self) -> None:
        try:
            await self._journal.end_lease(self._engine)
        except StoreError as error:
            log.warning("the lease of %s runs out by itself: %s", self._engine, error)
