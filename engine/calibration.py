"""What steps took, kept in the log: one stream a pool, so that an engine begins with what others have learnt.

It is written seldom, when a figure has changed by much, and never in the way of a job: what could not be written is
written with the next change.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct

from engine.clock import Clock
from engine.scheduling.cost import CostModel, Figure, StepKind
from store.errors import StoreError, StreamConflict
from store.journal import Append, Journal, Loaded, NewEvent

log = logging.getLogger("keyframe.calibration")

POOLS = "pool/"

EVERY_S = 30.0

CHANGED = 0.1
"""A figure is written again once it is off by this much of what was written."""


class CostMeasured(Struct, frozen=True, kw_only=True, tag="cost_measured"):
    """What steps of a kind took, over all that were timed: their mean, how far from it they are on average, and the
    mean of those that were the first on their worker.
    """

    kind: StepKind
    mean_s: float
    deviation_s: float
    samples: int
    cold_s: float = 0.0
    cold: int = 0
    flops: int = 0
    """Of one; 0 where that is not known."""


PoolEvent: TypeAlias = CostMeasured

_encode = msgspec.msgpack.Encoder().encode
_decode: "msgspec.msgpack.Decoder[PoolEvent]" = msgspec.msgpack.Decoder(PoolEvent)
_decode_all: "msgspec.msgpack.Decoder[list[PoolEvent]]" = msgspec.msgpack.Decoder(list[PoolEvent])


class Calibration:
    """`lease` is what appends are written under, as those of jobs are."""

    def __init__(self, journal: Journal, costs: CostModel, clock: Clock, *, lease: str | None) -> None:
        self._journal = journal
        self._costs = costs
        self._clock = clock
        self._lease = lease
        self._written: dict[str, dict[StepKind, CostMeasured]] = {}
        """What each pool's stream says."""
        self._heads: dict[str, tuple[int, int]] = {}
        """The version and epoch of each."""

    async def keep(self) -> None:
        """For ever."""
        await self.load()
        while True:
            await self._clock.sleep(EVERY_S)
            await self.save()

    async def load(self) -> None:
        """Take over what the log says of kinds that have not been timed here."""
        try:
            names = await self._journal.streams(POOLS)
            for name, loaded in (await self._journal.load_many(names)).items():
                self._take_over(name, loaded)
        except StoreError as error:
            log.warning("what steps take is not known from the log: %s", error)

    async def save(self) -> None:
        """Write what has changed by much."""
        changed: dict[str, list[CostMeasured]] = {}
        for kind, figure in self._costs.measured():
            now = measured(kind, figure)
            if kind.pool and differs(now, self._written.get(POOLS + kind.pool, {}).get(kind)):
                changed.setdefault(POOLS + kind.pool, []).append(now)
        for name, events in changed.items():
            await self._append(name, events)

    async def _append(self, name: str, events: Sequence[CostMeasured]) -> None:
        version, epoch = self._heads.get(name, (0, 0))
        now = self._written.get(name, {}) | {event.kind: event for event in events}
        append = Append(
            stream=name,
            expected=version,
            epoch=epoch,
            at=self._clock.now(),
            events=tuple(NewEvent("cost_measured", _encode(event)) for event in events),
            checkpoint=_encode(list(now.values())),
            lease=self._lease,
        )
        try:
            appended = await self._journal.append(append)
        except StreamConflict:  # another engine has written meanwhile
            await self.load()
        except StoreError as error:
            log.warning("what steps take could not be written: %s", error)
        else:
            self._heads[name], self._written[name] = (appended.version, epoch), now

    def _take_over(self, name: str, loaded: Loaded) -> None:
        try:
            known = {event.kind: event for event in _read(loaded)}
        except (msgspec.DecodeError, TypeError) as error:
            log.warning("%s cannot be read: %s", name, error)
            return
        self._heads[name], self._written[name] = (loaded.version, loaded.epoch), known
        for kind, event in known.items():
            figure = self._costs.figure(kind, event.flops)
            if not figure.samples:
                figure.mean_s, figure.deviation_s, figure.samples = event.mean_s, event.deviation_s, event.samples
                figure.cold_s, figure.cold = event.cold_s, event.cold
                figure.teach(event.mean_s)


def measured(kind: StepKind, figure: Figure) -> CostMeasured:
    return CostMeasured(
        kind=kind,
        mean_s=figure.mean_s,
        deviation_s=figure.deviation_s,
        samples=figure.samples,
        cold_s=figure.cold_s,
        cold=figure.cold,
        flops=figure.flops,
    )


def differs(now: CostMeasured, before: CostMeasured | None) -> bool:
    """Whether it is worth writing."""
    if before is None or (now.samples > 0) != (before.samples > 0) or now.flops != before.flops:
        return True
    careful, was = now.mean_s + now.deviation_s, before.mean_s + before.deviation_s
    return abs(careful - was) > CHANGED * max(careful, was)


def _read(loaded: Loaded) -> Iterable[CostMeasured]:
    """What the stream says of each kind, in the order in which it was said."""
    if loaded.checkpoint is not None:
        yield from _decode_all.decode(loaded.checkpoint.body)
    for event in loaded.events:
        yield _decode.decode(event.body)
