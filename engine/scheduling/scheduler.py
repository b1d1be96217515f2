"""What runs next, with whom and where: the steps that wait, in the policy's order, each where it suits best.

Nothing here waits, sends or measures; what it is told and when decides all that it says.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from engine.scheduling import batch
from engine.scheduling.admission import Room
from engine.scheduling.line import Line
from engine.scheduling.policy import Policy, due
from engine.scheduling.ready import Ready
from engine.scheduling.shares import Shares
from engine.scheduling.switching import TURNS, prefer, wish_of

AGED_EVERY = 4
"""Of so many seconds that are placed one is for steps that have waited longest, if those have waited too long."""

LATENCY_S = 60.0
"""Work that is quickly done keeps a worker for itself for this long after the last of it came."""


class Limits(Struct, frozen=True, kw_only=True):
    batch_most: int = 1
    """Steps that run together."""
    batch_s: float = 0.5
    """How long they would take one by one, at most: what fills a device by itself gains nothing by company, and what
    takes long cannot be interrupted.
    """
    batch_wait_s: float = 0.0
    """How long a step waits for partners."""
    adapters_s: float = 2.0
    """How long a step may be passed over for those that need no other adapters than the step before."""
    ageing_s: float = 60.0
    """A step that has waited for longer has a turn whatever the policy says, and a worker kept free for it if need be.
    """
    jumbo_s: float = 5.0
    """A step predicted to take longer keeps off the last worker that has none such, where jobs come that do not take
    as long from beginning to end.
    """


class Placement(Struct, frozen=True):
    """Steps of different jobs that run together, or one alone."""

    worker: str
    members: tuple[Ready, ...]


class Scheduler:
    """The steps that wait are its own, as is what tenants have had; what workers have left it is told."""

    def __init__(self, policy: Policy, limits: Limits | None = None, shares: Shares | None = None) -> None:
        self.policy = policy
        self.limits = limits or Limits()
        self.shares = shares or Shares()
        self.line = Line(policy, self.shares)
        self.due_at: float | None = None
        """When to plan again if nothing else happens: a worker then is nearly done with what it has, or a step has
        waited for partners long enough.
        """
        self._owed_s = 0.0
        """What others are to have before the next step that has waited too long."""
        self._slow: dict[str, None] = {}
        """Jobs whose last step was placed because it had waited too long."""
        self._latency_until = 0.0

    def add(self, ready: Ready, now: float) -> None:
        """A job's step may run. It takes the place of one that the job had in the line."""
        if ready.left_s + ready.served_s <= self.limits.jumbo_s:
            self._latency_until = now + LATENCY_S
        share = self.policy.share(ready)
        self.line.add(ready if share == ready.share else replace(ready, share=share), now)

    def discard(self, job: str) -> None:
        """The job is gone, or has a rest."""
        self.line.discard(job)
        self._slow.pop(job, None)

    def plan(self, rooms: Iterable[Room], now: float) -> list[Placement]:
        """What is to be sent now, in this order. It leaves the line, and the rooms have given what it takes.

        `rooms` are all the workers that are there, full ones too.
        """
        self.due_at = None
        there = {room.worker: room for room in rooms}
        placements = self._placements(there, now) if any(room.has_place for room in there.values()) else []
        if self.line:
            self._due_in(min((room.place_in_s for room in there.values() if not room.has_place), default=math.inf), now)
        return placements

    def _placements(self, there: Mapping[str, Room], now: float) -> list[Placement]:
        for room in there.values():
            self._take_turns(room, there, now)
        placements = self._aged(there, now)
        taken = {ready.job for placement in placements for ready in placement.members}
        placements += self._in_order(there, taken, now)
        if self.due_at is None and self._lift_turns(there):
            placements += self._in_order(there, taken, now)
        for job in taken:
            self.line.discard(job)
        return placements

    def _in_order(self, there: Mapping[str, Room], taken: set[str], now: float) -> list[Placement]:
        """As many as there is room for. Where the policy goes by share, each is charged before the next is chosen."""
        placements: list[Placement] = []
        while more := self._next(there, taken, now):
            placements += more
            if not (self.policy.by_share and any(room.has_place for room in there.values())):
                break
        return placements

    def _next(self, there: Mapping[str, Room], taken: set[str], now: float) -> list[Placement]:
        """Those for which the order holds as it is now."""
        placements: list[Placement] = []
        for ready in self.line.in_order(self._homes(there), now):
            if ready.job in taken or self._holds(ready, now):
                continue
            room = self._choose(ready, there, now)
            while room is not None and (before := self._before(ready, room, taken, now)) is not None:
                placements += self._place_next(before, room, taken, now)
                room = self._choose(ready, there, now)
            if room is None:
                continue  # this one does not fit now; it must not block one that does
            placements += self._place_next(ready, room, taken, now)
            if (placements and self.policy.by_share) or not any(room.has_place for room in there.values()):
                break
        return placements

    def _take_turns(self, room: Room, there: Mapping[str, Room], now: float) -> None:
        """Where there is not room for all models, the steps of some go first: of those that are the most urgent, or
        have waited too long.
        """
        if room.device is None or not room.has_place or not room.device.takes_turns:
            return
        able = [ready for ready in self.line if room.takes_when_idle(ready, self.policy.at_once)]
        able = [ready for ready in able if ready.home is None or ready.home not in there.keys() - {room.worker}] or able
        most = max((ready.priority for ready in able), default=0)
        able = [ready for ready in able if ready.priority == most or now - ready.since > self.limits.ageing_s]
        able = [ready for ready in able if _is_last_chance(ready, room, now)] or able
        room.turn = prefer(room.device, [wish_of(ready) for ready in able], now)

    def _lift_turns(self, there: Mapping[str, Room]) -> bool:
        """Whether a worker would be idle though all whose turn it is there have something else in their way."""
        idle = [room for room in there.values() if room.turn is not None and room.has_place and not room.outstanding]
        for room in idle:
            room.turn = None
        return bool(idle)

    def _before(self, ready: Ready, room: Room, taken: Collection[str], now: float) -> Ready | None:
        """A step to run before this one, of the same priority, from which both gain."""
        return self._alike(ready, room, taken, now) or self._opening(ready, room, taken, now)

    def _alike(self, ready: Ready, room: Room, taken: Collection[str], now: float) -> Ready | None:
        """One that needs no change of adapters there."""
        if room.modules is None or room.modules == ready.modules or room.modules[0] != ready.model or room.outstanding:
            return None
        patience_s = self.limits.adapters_s
        if ready.bound or now - ready.since > patience_s:
            return None
        if now <= due(ready) - ready.left_s < now + patience_s:  # it can be done in time, and then could not
            return None
        for other in self.line.in_order([home for home in (None, room.worker) if home in self.line.homes()], now):
            if other.priority != ready.priority or other.modules != room.modules or other.job in taken:
                continue
            if not self._holds(other, now) and room.takes(other, self.policy.at_once):
                return other
        return None

    def _opening(self, ready: Ready, room: Room, taken: Collection[str], now: float) -> Ready | None:
        """One that a job has before those that may go along with this one, if it takes no longer than these may."""
        if ready.group is None or self.limits.batch_most <= max(1, sum(room.jobs.values())):
            return None
        if 2 * ready.demand.seconds > self.limits.batch_s:
            return None
        spare_s = due(ready) - ready.left_s - now
        for other in self.line.in_order([home for home in (None, room.worker) if home in self.line.homes()], now):
            if other.joins != ready.group or other.job in taken or other.bound:
                continue
            seconds = other.demand.seconds
            if other.priority != ready.priority or seconds > self.limits.batch_s:
                continue
            if not 0 <= spare_s < seconds and room.takes(other, self.policy.at_once):
                return other
        return None

    def _homes(self, rooms: Mapping[str, Room]) -> list[str | None]:
        """The workers whose jobs can go on: there, on an idle one, or wherever there is a place if theirs is gone."""
        idle = None
        homes = []
        for home in self.line.homes():
            room = None if home is None else rooms.get(home)
            if room is not None and not (room.has_place or room.draining):
                idle = any(one.has_place and not one.outstanding for one in rooms.values()) if idle is None else idle
                if not idle:
                    continue
            homes.append(home)
        return homes

    def _choose(self, ready: Ready, rooms: Mapping[str, Room], now: float) -> Room | None:
        """Where a step should run now: with the worker that holds its job's tensors.

        If that one is full, only an idle worker is worth moving the tensors to; if it is gone, the emptiest is.
        """
        spared = self._spared(ready, rooms, now)
        home = None if ready.home is None else rooms.get(ready.home)
        if home is not None and (home is spared or not home.serves(ready)):
            home = None
        if home is not None and home.takes(ready) and (ready.bound or home.is_large_enough(ready)):
            return home
        if ready.bound:
            return None
        serving = [room for room in rooms.values() if room is not spared and room.serves(ready)]
        serving = [room for room in serving if room.is_large_enough(ready)] or serving
        able = [room for room in serving if room.takes(ready, self.policy.at_once)]
        if home in able:
            return home
        options = able if home is None or home not in serving else [room for room in able if not room.outstanding]
        return min(
            options,
            key=lambda room: (room.outstanding, room.coming, room.loading_s(ready), room.worker),
            default=None,
        )

    def _spared(self, ready: Ready, rooms: Mapping[str, Room], now: float) -> Room | None:
        """The last worker that has no step which takes long, if this is one and shorter work may come."""
        if ready.demand.seconds <= self.limits.jumbo_s or now >= self._latency_until:
            return None
        serving = [room for room in rooms.values() if room.serves(ready)]
        clear = [room for room in serving if not room.jumbo]
        return clear[0] if len(clear) == 1 and len(serving) > 1 else None

    def _place_next(self, ready: Ready, room: Room, taken: set[str], now: float) -> list[Placement]:
        """Behind what is there, or as soon as that is idle: nothing else goes there before."""
        if room.goes_behind(ready):
            return [self._place(ready, room, taken, now)]
        room.credits = 0
        return []

    def _place(self, first: Ready, room: Room, taken: set[str], now: float) -> Placement:
        """It is charged what it will take on the careful side; whoever carries it out settles that."""
        seconds = first.demand.seconds + room.loading_s(first)
        room.place(first)
        together: tuple[Ready, ...] = (first,)
        if first.group is not None and self.limits.batch_most > 1 and room.holds(first):
            partners = (ready for ready in self.line.together(first.group, now) if ready.job not in taken)
            most, most_s = self.limits.batch_most, self.limits.batch_s
            at_once = self.policy.at_once
            together = batch.members(first, partners, room, most=most, most_s=most_s, at_once=at_once)
        room.jumbo = room.jumbo or seconds > self.limits.jumbo_s
        taken.update(ready.job for ready in together)
        for ready in together:
            self.shares.add(ready.share, ready.demand.seconds, now)
            self._slow.pop(ready.job, None)
        self._owed_s = max(0.0, self._owed_s - sum([ready.demand.seconds for ready in together]))
        return Placement(room.worker, together)

    def _holds(self, ready: Ready, now: float) -> bool:
        most, most_s, wait_s = self.limits.batch_most, self.limits.batch_s, self.limits.batch_wait_s
        if ready.group is None or most < 2 or not wait_s:
            return False
        if not batch.holds(ready, self.line.count(ready.group), now, most=most, most_s=most_s, wait_s=wait_s):
            return False
        self._due_in(ready.since + wait_s - now, now)
        return True

    def _due_in(self, seconds: float, now: float) -> None:
        if seconds < math.inf:
            self.due_at = min(now + seconds, math.inf if self.due_at is None else self.due_at)

    def _aged(self, rooms: Mapping[str, Room], now: float) -> list[Placement]:
        """The step that has waited longest goes first, once others have had their part. A worker is kept free for the
        first that does not fit; what that waits for still has its turns.
        """
        kept: Room | None = None
        for ready in self._old(now):
            if kept is not None and ready.home is None and not _has_place_beside(kept, rooms):
                continue
            if (room := self._choose(ready, rooms, now)) is not None:
                return [self._place_aged(ready, room, now)] if self._owed_s <= 0 else []
            if kept is None and (room := self._awaited(ready, rooms, now)) is not None:
                if not room.is_turn_of(ready) and room.takes_when_idle(ready, self.policy.at_once):
                    continue  # its turn will come
                room.keep_for(ready)
                kept = room
        return []

    def _old(self, now: float) -> Iterator[Ready]:
        """What has waited too long, and then the steps of jobs that would have to wait as long for each."""
        for ready in self.line:
            if now - ready.since <= self.limits.ageing_s:
                break
            yield ready
        for job in list(self._slow):
            if (slow := self.line.find(job)) is not None and now - slow.since <= self.limits.ageing_s:
                yield slow

    def _place_aged(self, ready: Ready, room: Room, now: float) -> Placement:
        placement = self._place(ready, room, set(), now)
        self._owed_s = (AGED_EVERY - 1) * sum([member.demand.seconds for member in placement.members])
        self._slow |= {member.job: None for member in placement.members}
        return placement

    def _awaited(self, ready: Ready, rooms: Mapping[str, Room], now: float) -> Room | None:
        """The worker on which a step that fits nowhere will fit first, if only bytes are in its way."""
        spared = self._spared(ready, rooms, now)
        home = rooms.get(ready.home or "")
        if home is not None and home is not spared and home.serves(ready) and home.is_large_enough(ready):
            return home
        if ready.bound:
            return None
        most = self.policy.at_once
        serving = [room for room in rooms.values() if room.serves(ready) and not room.is_crowded(ready, most)]
        serving = [room for room in serving if room is not spared]
        serving = [room for room in serving if room.is_large_enough(ready)] or serving
        return min(serving, key=lambda room: (sum(room.jobs.values()), room.worker), default=None)


def _has_place_beside(kept: Room, rooms: Mapping[str, Room]) -> bool:
    return any(room.has_place for room in rooms.values() if room is not kept)


def _is_last_chance(ready: Ready, room: Room, now: float) -> bool:
    """Whether a job that can still be done by its deadline cannot if it waits for much longer than loading takes."""
    if ready.deadline is None:
        return False
    loading_s = room.loading_s(ready)
    return 0 <= ready.deadline - now - ready.left_s - loading_s <= loading_s + TURNS.least_s
