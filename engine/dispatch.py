"""Who runs next and where: ready jobs in order of priority and age, each step to the worker that suits it best."""

import heapq
import itertools

from cards.registry import Registry
from cards.wire import Release, UnitId, WorkPlan, WorkUnit
from engine.actor import JobActor
from engine.events import NumericsChanged
from engine.fleet import Fleet, Seat, choose
from engine.job import State
from engine.ledger import Ledger
from engine.link import Link


class Dispatcher:
    def __init__(self, ledger: Ledger, fleet: Fleet, link: Link, registry: Registry) -> None:
        self._ledger = ledger
        self._fleet = fleet
        self._link = link
        self._registry = registry
        self._order = itertools.count()
        self._ready: list[tuple[int, int, JobActor]] = []

    def line_up(self, actor: JobActor) -> None:
        """The job's next step may run: it goes behind those of its priority that wait already."""
        actor.lined_up = True
        heapq.heappush(self._ready, (-actor.job.request.priority, next(self._order), actor))

    def waiting(self) -> int:
        return sum(self._current(actor) for _, _, actor in self._ready)

    async def dispatch(self) -> list[Seat]:
        """Send every step that a worker takes. Returns the seats that turned out to be gone."""
        gone: list[Seat] = []
        for actor, unit in self._assign():
            seat = self._fleet.seats.get(actor.home or "")
            wanted = actor.unit == unit and actor.job.state is State.RUNNING
            if wanted and seat is not None and not await self._send(actor, unit, seat):
                self._fleet.leave(seat.worker)
                gone.append(seat)
        return gone

    async def release(self, actor: JobActor) -> None:
        """Have the job's worker forget it. The worker answers `Released`."""
        if actor.home is not None:
            await self._link.send(actor.home, Release(actor.job.id, actor.epoch))

    def _assign(self) -> list[tuple[JobActor, UnitId]]:
        """Take every step that fits somewhere off the line and reserve its place there, all without waiting."""
        assigned = []
        later = []
        while self._ready and any(seat.free_credits > 0 for seat in self._fleet.seats.values()):
            entry = heapq.heappop(self._ready)
            actor = entry[2]
            if not self._current(actor):
                continue
            assert actor.plan is not None
            seat = choose(self._fleet.serving(actor.job.model), actor.plan, actor.home)
            if seat is None:  # this one does not fit now; it must not block one that does
                later.append(entry)
            else:
                assigned.append((actor, self._reserve(actor, actor.plan, seat)))
        for entry in later:
            heapq.heappush(self._ready, entry)
        return assigned

    def _current(self, actor: JobActor) -> bool:
        """Whether an entry still stands for something: its job may have been cancelled or dropped."""
        return actor.lined_up and self._ledger.actors.get(actor.job.id) is actor

    def _reserve(self, actor: JobActor, plan: WorkPlan, seat: Seat) -> UnitId:
        if actor.job.fingerprint != seat.hello.fingerprint:
            self._ledger.write(actor, [NumericsChanged(fingerprint=seat.hello.fingerprint)])
        actor.move_to(seat.worker)
        actor.lined_up = False
        actor.unit = UnitId(actor.job.id, actor.epoch, actor.version, actor.job.attempt)
        seat.outstanding[actor.unit] = plan
        return actor.unit

    async def _send(self, actor: JobActor, unit: UnitId, seat: Seat) -> bool:
        """Whether the worker could be reached."""
        assert actor.plan is not None
        if actor.left is not None:
            await self._link.send(actor.left, Release(actor.job.id, actor.epoch))
            actor.left = None
        needs = actor.needs()
        inline = tuple(digest for digest in needs if digest in actor.inline and digest not in actor.held)
        actor.held = actor.held.union(inline).intersection(needs)
        work = WorkUnit(id=unit, plan=actor.plan, inline=inline, keep=needs)
        return await self._link.send(seat.worker, work, [actor.inline[digest] for digest in inline])
