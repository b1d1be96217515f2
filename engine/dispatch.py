"""Who runs next and where: ready jobs in order of priority and age, each step to the worker that suits it best."""

import heapq
import itertools
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from cards.folding import lacking
from cards.registry import Registry
from cards.roles import role_of
from cards.wire import EngineMessage, Fetch, Hello, Release, UnitId, WorkPlan, WorkUnit, is_promised
from engine import driver
from engine.actor import JobActor, Sent
from engine.driver import Ahead
from engine.events import NumericsChanged
from engine.fleet import Fleet, Seat, choose
from engine.job import State
from engine.ledger import Ledger
from engine.link import Link
from engine.needs import tensors

Assignment = tuple[JobActor, Seat, WorkUnit]

AHEAD = 2
"""Units of one job that may be with a worker at once: one runs, and the one that follows is there when it is done."""


class Dispatcher:
    def __init__(self, ledger: Ledger, fleet: Fleet, link: Link, registry: Registry) -> None:
        self._ledger = ledger
        self._fleet = fleet
        self._link = link
        self._registry = registry
        self._order = itertools.count()
        self._serials = itertools.count(1)
        self._ready: list[tuple[int, int, JobActor]] = []

    def line_up(self, actor: JobActor) -> None:
        """The job's next step may run: it goes behind those of its priority that wait already."""
        actor.lined_up = True
        if len(self._ready) > 2 * len(self._ledger.actors) + 64:  # most of them are of jobs that are gone
            self._ready = [entry for entry in self._ready if self._current(entry[2])]
            heapq.heapify(self._ready)
        heapq.heappush(self._ready, (-actor.job.request.priority, next(self._order), actor))

    def waiting(self) -> int:
        return sum(self._current(actor) for _, _, actor in self._ready)

    async def dispatch(self) -> list[Seat]:
        """Send every step that a worker takes. Returns the seats that turned out to be gone."""
        gone: list[Seat] = []
        for actor, seat, unit in self._assign():
            if not any(sent.id == unit.id for sent in actor.out) or actor.job.state is State.CANCELLING:
                seat.outstanding.pop(unit.id, None)  # while others were sent it became pointless
            elif not await self._send(actor, seat, unit) and self._fleet.leave(seat.worker):
                gone.append(seat)
        return gone

    async def release(self, actor: JobActor) -> None:
        """Have the workers that hold something of the job forget it. Each answers `Released`."""
        if actor.home is not None:
            await self._tell(actor.home, Release(actor.job.id, actor.epoch))
        await self.dismiss(actor)

    async def dismiss(self, actor: JobActor) -> None:
        """Have all workers but the job's own forget it: that one has answered, and so has all that it needs."""
        for worker in actor.dismiss():
            await self._tell(worker, Release(actor.job.id, actor.epoch))

    async def forget(self, worker: str, unit: UnitId) -> None:
        """Have a worker forget what it holds of a job that it has nothing to do with any more."""
        await self._tell(worker, Release(unit.job, unit.epoch))

    def _assign(self) -> list[Assignment]:
        """Take every step that fits somewhere off the line and reserve its place there, all without waiting."""
        assigned = []
        later: list[tuple[int, int, JobActor]] = []
        while self._ready and (not later or any(seat.has_room for seat in self._fleet.seats.values())):
            entry = heapq.heappop(self._ready)
            actor = entry[2]
            if not self._current(actor):
                continue
            if actor.out and not self._home_has_room(actor):
                later.append(entry)
                continue
            following = self._following(actor)
            if following is None:  # the unit that is out may end its loop: what follows is known when it is back
                actor.lined_up = False
            elif (seat := self._seat_for(actor, following.plan)) is None:
                later.append(entry)  # this one does not fit now; it must not block one that does
            else:
                assigned.append((actor, seat, self._reserve(actor, following, seat)))
        for entry in later:
            heapq.heappush(self._ready, entry)
        return assigned

    def _following(self, actor: JobActor) -> Ahead | None:
        """The step to send next: the one after the state, or the one that is sure to follow the unit that is out."""
        assert actor.state is not None
        assert actor.plan is not None
        if not actor.out:
            return Ahead(actor.state, actor.plan)
        sent = actor.out[0]
        return driver.ahead(self._registry[actor.job.model.name], actor.state, sent.id, sent.plan)

    def _home_has_room(self, actor: JobActor) -> bool:
        home = self._fleet.seats.get(actor.home or "")
        return home is not None and home.has_room

    def _seat_for(self, actor: JobActor, plan: WorkPlan) -> Seat | None:
        role = role_of(self._registry[actor.job.model.name].card, plan.loop)
        seats = self._fleet.serving(actor.job.model, actor.job.pool, role)
        if actor.out:  # it reads what only that worker will have
            seats = [seat for seat in seats if seat.worker == actor.home]
        return choose(seats, plan, actor.home)

    def _current(self, actor: JobActor) -> bool:
        """Whether an entry still stands for something: its job may have been cancelled or dropped."""
        return actor.lined_up and self._ledger.actors.get(actor.job.id) is actor

    def _reserve(self, actor: JobActor, following: Ahead, seat: Seat) -> WorkUnit:
        if actor.job.fingerprint != seat.hello.fingerprint:
            self._ledger.write(actor, [NumericsChanged(fingerprint=seat.hello.fingerprint)])
        actor.move_to(seat.worker)
        actor.lined_up = False
        wanted = tensors(actor.job, following.state)
        held = actor.held.intersection(wanted)  # the worker forgets what is not kept
        lacks = lacking(wanted, actor.refolds, held)
        inline = tuple(digest for digest in lacks.stored if digest in actor.inline)
        made = {ref.digest for refold in lacks.refolds for ref in refold.makes.values()}
        read = {ref.digest for ref in following.plan.reads.values() if not is_promised(ref)}
        fetch = self._fetch(actor, seat, (made | read) - held.union(inline))
        actor.held = held.union(inline, made, read).intersection(wanted)
        unit = WorkUnit(
            id=actor.next_unit(next(self._serials)),
            plan=following.plan,
            inline=inline,
            keep=tuple(wanted),
            refolds=lacks.refolds,
            fetch=fetch,
        )
        actor.out.append(Sent(unit.id, unit.plan))
        seat.outstanding[unit.id] = unit.plan
        if fetch is not None:
            seat.fetching.add(unit.id)
        return unit

    def _fetch(self, actor: JobActor, seat: Seat, lacks: AbstractSet[str]) -> Fetch | None:
        """What the worker that the job comes from has of what is lacking, where the two can reach each other."""
        holder = self._fleet.seats.get(actor.left.worker) if actor.left is not None else None
        if actor.left is None or holder is None or not _reaches(seat.hello, holder.hello):
            return None
        there = sorted(actor.left.digests & lacks)
        return Fetch(holder.hello.transfers, holder.hello.host, tuple(there)) if there else None

    async def _send(self, actor: JobActor, seat: Seat, unit: WorkUnit) -> bool:
        """Whether the worker could be reached."""
        while actor.strays:
            await self._tell(actor.strays.pop(), Release(actor.job.id, actor.epoch))
        return await self._tell(seat.worker, unit, [actor.inline[digest] for digest in unit.inline])

    async def _tell(self, worker: str, message: EngineMessage, frames: Sequence[bytes] = ()) -> bool:
        """Whether the worker could be reached. What could not be sent counts as lost on the way."""
        self._fleet.sending(worker)
        return await self._link.send(worker, message, frames)


def _reaches(worker: Hello, holder: Hello) -> bool:
    """Whether a worker can be given what another one holds: what is not a network's address is for one host."""
    return bool(holder.transfers) and (worker.host == holder.host or holder.transfers.startswith("tcp:"))
