"""The workers as the engine sees them: who is there, what each is doing, and what each has room for. Pure.

What a worker has reserved is derived from the units that are with it, so nothing can leak: a unit that is gone, for
whatever reason, has given everything back.
"""

from collections.abc import Sequence

from msgspec import Struct, field

from cards.wire import Heartbeat, Hello, ModelIdentity, UnitId, WorkPlan


class Seat(Struct, kw_only=True):
    """One worker. `outstanding` is in the order of sending, which is the order of execution."""

    hello: Hello
    heard_at: float
    beat: Heartbeat | None = None
    outstanding: dict[UnitId, WorkPlan] = field(default_factory=dict)

    @property
    def worker(self) -> str:
        return self.hello.worker

    @property
    def free_credits(self) -> int:
        return self.hello.credits - len(self.outstanding)

    @property
    def reserved_bytes(self) -> int:
        return sum(plan.resources.peak_bytes for plan in self.outstanding.values())

    def serves(self, model: ModelIdentity) -> bool:
        return model in self.hello.models

    def takes(self, plan: WorkPlan) -> bool:
        """Whether this plan can be reserved now. An idle worker takes anything: waiting would not make it fit."""
        if not self.outstanding:
            return True
        return self.free_credits > 0 and self.reserved_bytes + plan.resources.peak_bytes <= self.hello.memory_bytes


class Fleet:
    """`silent_s` without a word, and a worker's hold on its work has run out."""

    def __init__(self, silent_s: float) -> None:
        self.silent_s = silent_s
        self.seats: dict[str, Seat] = {}

    def join(self, hello: Hello, now: float) -> Seat | None:
        """Take a worker in. Returns the seat it had before, if it had one: what was with it then is lost."""
        before = self.seats.pop(hello.worker, None)
        self.seats[hello.worker] = Seat(hello=hello, heard_at=now)
        return before

    def heard(self, worker: str, now: float, beat: Heartbeat | None = None) -> bool:
        """Whether this worker is known; a stranger must introduce itself."""
        seat = self.seats.get(worker)
        if seat is None:
            return False
        seat.heard_at = now
        seat.beat = beat or seat.beat
        return True

    def leave(self, worker: str) -> Seat | None:
        return self.seats.pop(worker, None)

    def silent(self, now: float) -> list[Seat]:
        return [seat for seat in self.seats.values() if now - seat.heard_at > self.silent_s]

    def answered(self, worker: str, unit: UnitId) -> bool:
        """Take a unit off a worker. False if it was not, or no longer, with it."""
        seat = self.seats.get(worker)
        return seat is not None and seat.outstanding.pop(unit, None) is not None

    def released(self, worker: str, job: str) -> None:
        """Nothing of this job is with this worker any more."""
        if seat := self.seats.get(worker):
            seat.outstanding = {unit: plan for unit, plan in seat.outstanding.items() if unit.job != job}

    def serving(self, model: ModelIdentity) -> list[Seat]:
        return [seat for seat in self.seats.values() if seat.serves(model)]


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
