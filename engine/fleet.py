"""The workers as the engine sees them: who is there, what each is doing, and what each has room for. Pure.

What a worker has reserved is derived from the units that are with it, so nothing can leak: a unit that is gone, for
whatever reason, has given everything back.
"""

import math
from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from cards.wire import Heartbeat, Hello, ModelIdentity, UnitId, WorkPlan

AT_ONCE = 2
"""Units that a worker holds in any case: one runs, and the next is there when it is done."""

QUEUE_S = 0.02
"""Seconds of work that a worker holds beyond that: what waits there cannot be overtaken by what is more urgent."""


class Seat(Struct, kw_only=True):
    """One worker. `outstanding` is in the order of sending, which is the order of execution.

    `sent` and `received` count the messages since it joined, other than heartbeats; `mark` is what `sent` was at some
    time and the worker has not yet said to have received.

    `step_s` is how long its steps take, by instance and kind: a running mean of what it said of them.
    """

    hello: Hello
    heard_at: float
    beat: Heartbeat | None = None
    sent: int = 0
    received: int = 0
    mark: tuple[int, float] = (0, 0.0)
    outstanding: dict[UnitId, WorkPlan] = field(default_factory=dict)
    fetching: set[UnitId] = field(default_factory=set)
    """Those whose tensors come from another worker: the units behind them need not wait."""
    step_s: dict[tuple[str, str], float] = field(default_factory=dict)
    draining: bool = False
    """It gets no more work, and is told to leave once it has none."""
    dismissed: bool = False
    """It has been told."""

    @property
    def worker(self) -> str:
        return self.hello.worker

    @property
    def free_credits(self) -> int:
        return self.hello.credits - len(self.outstanding)

    @property
    def reserved_bytes(self) -> int:
        return sum(plan.resources.peak_bytes for plan in self.outstanding.values())

    @property
    def running(self) -> UnitId | None:
        """What it is at, as far as can be told."""
        waiting = self.fetching if len(self.fetching) < len(self.outstanding) else ()
        return next((unit for unit in self.outstanding if unit not in waiting), None)

    def serves(self, model: ModelIdentity, role: str | None = None) -> bool:
        return model in self.hello.models and (role is None or not self.hello.serves or role in self.hello.serves)

    def takes(self, plan: WorkPlan) -> bool:
        """Whether this plan can be reserved now. An idle worker takes anything: waiting would not make it fit."""
        if not self.outstanding:
            return True
        return self.has_room and self.reserved_bytes + plan.resources.peak_bytes <= self.hello.memory_bytes

    @property
    def has_room(self) -> bool:
        """Whether one more unit would not wait here for longer than it should."""
        return (
            not self.draining and self.free_credits > 0 and (len(self.outstanding) < AT_ONCE or self.queued_s < QUEUE_S)
        )

    @property
    def queued_s(self) -> float:
        """Seconds of work that are here, as far as is known."""
        known = self.step_s
        return sum([known.get((plan.instance, plan.kind), math.inf) for plan in self.outstanding.values()])

    def took(self, plan: WorkPlan, seconds: float) -> None:
        """A step was timed."""
        key = (plan.instance, plan.kind)
        self.step_s[key] = 0.8 * self.step_s.get(key, seconds) + 0.2 * seconds


class Fleet:
    """`silent_s` without a word, and a worker's hold on its work has run out."""

    def __init__(self, silent_s: float) -> None:
        self.silent_s = silent_s
        self.seats: dict[str, Seat] = {}

    def join(self, hello: Hello, now: float) -> Seat | None:
        """Take a worker in. Returns the seat it had before, if it had one: what was with it then is lost."""
        before = self.seats.pop(hello.worker, None)
        self.seats[hello.worker] = Seat(hello=hello, heard_at=now, mark=(0, now))
        return before

    def heard(self, worker: str, now: float, beat: Heartbeat | None = None) -> bool:
        """Whether this worker is known; a stranger must introduce itself."""
        seat = self.seats.get(worker)
        if seat is None:
            return False
        seat.heard_at = now
        seat.beat = beat or seat.beat
        seat.received += beat is None
        return True

    def sending(self, worker: str) -> None:
        """A message leaves for a worker."""
        if seat := self.seats.get(worker):
            seat.sent += 1

    def missed(self, worker: str, beat: Heartbeat, now: float) -> bool:
        """Whether a message from this worker never came, or one to it has not come in all of `silent_s`."""
        seat = self.seats[worker]
        if beat.sent is None or beat.received is None:
            return False
        if beat.received >= seat.mark[0]:
            seat.mark = (seat.sent, now)
        return beat.sent > seat.received or now - seat.mark[1] > self.silent_s

    def leave(self, worker: str) -> Seat | None:
        return self.seats.pop(worker, None)

    def silent(self, now: float) -> list[Seat]:
        return [seat for seat in self.seats.values() if now - seat.heard_at > self.silent_s]

    def answered(self, worker: str, unit: UnitId, seconds: float) -> bool:
        """Take a unit off a worker. False if it was not, or no longer, with it."""
        seat = self.seats.get(worker)
        plan = seat.outstanding.pop(unit, None) if seat else None
        if seat is None or plan is None:
            return False
        seat.fetching.discard(unit)
        seat.took(plan, seconds)
        return True

    def dropped(self, worker: str, units: Iterable[UnitId]) -> None:
        """A worker did not run these and will not; one that it was running answers for itself."""
        if seat := self.seats.get(worker):
            for unit in units:
                seat.outstanding.pop(unit, None)
                seat.fetching.discard(unit)

    def serving(self, model: ModelIdentity, pool: str | None = None, role: str | None = None) -> list[Seat]:
        """The seats that take work for a model, in this pool and of loops of this role if they are named."""
        here = [seat for seat in self.seats.values() if pool in (None, seat.hello.pool)]
        return [seat for seat in here if seat.serves(model, role) and not seat.draining]

    def drained(self) -> list[Seat]:
        """Those that were to leave and have nothing left to do."""
        return [seat for seat in self.seats.values() if seat.draining and not (seat.outstanding or seat.dismissed)]


def choose(seats: Sequence[Seat], plan: WorkPlan, home: str | None) -> Seat | None:
    """Where a step should run: with the worker that holds its job's tensors.

    If that one is full, only an idle worker is worth moving the tensors to; if it is gone, the emptiest is.
    """
    able = {seat.worker: seat for seat in seats if seat.takes(plan)}
    if home in able:
        return able[home]
    alive = any(seat.worker == home for seat in seats)
    options = [seat for seat in able.values() if not (alive and seat.outstanding)]
    return min(options, key=lambda seat: (len(seat.outstanding), seat.worker), default=None)
