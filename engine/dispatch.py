"""Who runs next and where: ready jobs in order of priority and age, each step to the worker that suits it best."""

import heapq
import itertools

from cards.registry import Registry
from cards.wire import Release, UnitId, WorkPlan, WorkUnit
from engine import driver
from engine.actor import JobActor
from engine.events import NumericsChanged
from engine.fleet import Fleet, Seat, choose
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

    def ready(self, actor: JobActor) -> None:
        """The job's next step may run: it goes behind those of its priority that wait already."""
        assert actor.state is not None
        actor.plan = driver.plan(actor.state, self._registry[actor.job.model.name])
        heapq.heappush(self._ready, (-actor.job.request.priority, next(self._order), actor))

    def waiting(self) -> int:
        return sum(self._current(actor) for _, _, actor in self._ready)

    async def dispatch(self) -> list[Seat]:
        """Send every ready step that a worker takes. Returns the seats that turned out to be gone."""
        later = []
        gone: list[Seat] = []
        while self._ready and any(seat.free_credits > 0 for seat in self._fleet.seats.values()):
            entry = heapq.heappop(self._ready)
            actor = entry[2]
            if not self._current(actor):
                continue
            assert actor.plan is not None
            seat = choose(self._fleet.serving(actor.job.model), actor.plan, actor.home)
            if seat is None:  # this one does not fit now; it must not block one that does
                later.append(entry)
            elif not await self._send(actor, actor.plan, seat):
                gone.append(seat)
                self._fleet.leave(seat.worker)
        for entry in later:
            heapq.heappush(self._ready, entry)
        return gone

    async def release(self, actor: JobActor) -> None:
        """Have the job's worker forget it. The worker answers `Released`."""
        if actor.home is not None:
            await self._link.send(actor.home, Release(actor.job.id, actor.epoch))

    def _current(self, actor: JobActor) -> bool:
        """Whether a ready entry still stands for something: its job may have been cancelled, dropped or moved."""
        return actor.plan is not None and self._ledger.actors.get(actor.job.id) is actor

    async def _send(self, actor: JobActor, plan: WorkPlan, seat: Seat) -> bool:
        if actor.home != seat.worker:
            await self.release(actor)
            actor.home, actor.held = seat.worker, frozenset()
        if actor.job.fingerprint != seat.hello.fingerprint:
            self._ledger.write(actor, [NumericsChanged(fingerprint=seat.hello.fingerprint)])
        needs = actor.needs()
        inline = tuple(digest for digest in needs if digest in actor.inline and digest not in actor.held)
        unit = WorkUnit(
            id=UnitId(actor.job.id, actor.epoch, actor.version, actor.job.attempt), plan=plan, inline=inline, keep=needs
        )
        actor.plan, actor.unit = None, unit.id
        actor.held = actor.held.union(inline).intersection(needs)
        seat.outstanding[unit.id] = plan
        return await self._link.send(seat.worker, unit, [actor.inline[digest] for digest in inline])
