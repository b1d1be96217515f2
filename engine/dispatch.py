"""Who runs next and where, as the scheduler says: what it places is reserved, sent, and taken off when it is back."""

import itertools
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import TypeAlias

import anyio
from msgspec import Struct
from msgspec.structs import replace

from cards.folding import lacking
from cards.registry import Registry
from cards.wire import (
    Batch,
    EngineMessage,
    Fetch,
    Hello,
    Release,
    StepResult,
    UnitId,
    WorkPlan,
    WorkUnit,
    is_promised,
)
from engine import driver
from engine.accounts import Accounts
from engine.actor import JobActor, Sent
from engine.clock import Clock
from engine.driver import Ahead
from engine.events import NumericsChanged
from engine.fleet import AtHome, Fleet, Reserved, Seat
from engine.job import State
from engine.ledger import Ledger
from engine.link import Link
from engine.needs import tensors
from engine.scheduling import admission
from engine.scheduling.admission import SOON_S, Room
from engine.scheduling.ready import Ready
from engine.scheduling.scheduler import Placement, Scheduler

Member: TypeAlias = tuple[JobActor, WorkUnit]

AHEAD = 2
"""Units of one job that may be with a worker at once: one runs, and the one that follows is there when it is done."""


class Assignment(Struct, frozen=True):
    """What a worker executes together."""

    seat: Seat
    members: list[Member]


class Dispatcher:
    def __init__(
        self,
        ledger: Ledger,
        fleet: Fleet,
        link: Link,
        registry: Registry,
        clock: Clock,
        accounts: Accounts,
        scheduler: Scheduler,
    ) -> None:
        self.scheduler = scheduler
        self.unfit: dict[str, tuple[float, str]] = {}
        """Jobs whose next step is too large for every worker that would run it: since when, and what is missing."""
        self.accounts = accounts
        self._ledger = ledger
        self._fleet = fleet
        self._link = link
        self._registry = registry
        self._clock = clock
        self._serials = itertools.count(1)
        self._batches = itertools.count(1)
        self._planned = anyio.Event()
        self._at_home: dict[str, AtHome] = {}
        self._counted_at: int | None = None
        """What the workers hold, as it was after so many moves; None if it is to be counted anew anyhow."""

    def line_up(self, actor: JobActor) -> None:
        """The job's next step may run. One that is lined up already stays where it is, as it looks now."""
        if actor.account is None:  # it is being claimed
            return
        now, account = self._clock.monotonic(), actor.account
        held = (account.share, account.resident_bytes, account.coming_bytes)
        ready = self.accounts.ready(actor, account, now)
        if held != (account.share, account.resident_bytes, account.coming_bytes):
            self._counted_at = None
        if account.forecast.kinds and (lack := self._lack(ready)) is not None:  # else it is tried
            self.unfit.setdefault(actor.job.id, (now, lack))
            self.stand_down(actor)
            return
        self.unfit.pop(actor.job.id, None)
        actor.lined_up = True
        self.scheduler.add(ready, now)
        if len(self.scheduler.line) > 2 * len(self._ledger.actors) + 64:  # most of them are of jobs that are gone
            self.tidy()

    def tidy(self) -> None:
        """Take off the line what stands for nothing: of jobs that are gone, or have a rest."""
        for job in [one.job for one in self.scheduler.line if self._current(one.job) is None]:
            self.scheduler.discard(job)

    def why(self, job: str) -> str | None:
        """Why a job's step waits, if it is for want of memory."""
        if job in self.unfit:
            return self.unfit[job][1]
        if self._current(job) is None:
            return None
        rooms = self.rooms(self._clock.monotonic())
        return next((admission.why(ready, rooms) for ready in self.scheduler.line if ready.job == job), None)

    def too_large(self, since: float) -> list[tuple[JobActor, str]]:
        """Those that have found no worker large enough from then on, with what is missing."""
        actors = {job: self._ledger.actors.get(job) for job in self.unfit}
        running = {job: actor for job, actor in actors.items() if actor and actor.job.state is State.RUNNING}
        self.unfit = {job: self.unfit[job] for job in running}
        return [(actor, self.unfit[job][1]) for job, actor in running.items() if self.unfit[job][0] < since]

    def waiting(self) -> list[Ready]:
        return [ready for ready in self.scheduler.line if self._current(ready.job) is not None]

    async def keep_time(self, dispatch: Callable[[], Awaitable[None]]) -> None:
        """For ever: dispatch when the scheduler said that something could be placed, if nothing happens before."""
        while True:
            self._planned = anyio.Event()
            due_at = self.scheduler.due_at
            pause_s = math.inf if due_at is None else max(SOON_S, due_at - self._clock.monotonic())
            with anyio.move_on_after(pause_s) as pause:
                await self._planned.wait()
            if pause.cancelled_caught:
                await dispatch()

    async def dispatch(self) -> list[JobActor]:
        """Send every step that a worker takes. Returns the jobs whose worker could not be reached with one."""
        unsent: list[JobActor] = []
        due_at = self.scheduler.due_at
        assigned = self._assign()
        if self.scheduler.due_at != due_at:
            self._planned.set()
        for assignment in assigned:
            seat, members = assignment.seat, []
            for actor, unit in assignment.members:
                if any(sent.id == unit.id for sent in actor.out) and actor.job.state is not State.CANCELLING:
                    members.append((actor, unit))
                else:
                    self._take_back(seat, unit.id)  # while others were sent it became pointless
            if members and not await self._send(seat, members):
                seat.reachable = False
                for actor, unit in members:
                    self._take_back(seat, unit.id)
                    actor.take_back(unit.id)
                    unsent.append(actor)
        return unsent

    def answered(self, worker: str, result: StepResult) -> Reserved | None:
        """A unit came back. None if it was not, or no longer, with this worker."""
        now = self._clock.monotonic()
        reserved = self._fleet.answered(worker, result.id, now)
        actor = self._ledger.actors.get(result.id.job)
        if reserved is None:
            return None
        self._refund(reserved)
        self.scheduler.shares.add(reserved.share, result.seconds, now)
        if actor is not None:
            self.accounts.took(reserved, result, worker)
        return reserved

    def dropped(self, worker: str, units: Iterable[UnitId]) -> None:
        """A worker did not run these and will not."""
        for reserved in self._fleet.dropped(worker, units):
            self._refund(reserved)

    def lost(self, seat: Seat, running: Collection[UnitId]) -> None:
        """A worker is gone. What it was running and is blamed for that stays charged; nothing else does."""
        for unit in [unit for unit in seat.outstanding if unit not in running]:
            self._take_back(seat, unit)

    async def release(self, actor: JobActor) -> None:
        """Have the workers that hold something of the job forget it. Each answers `Released`."""
        if self._current(actor.job.id) is None:  # else it is lined up anew, by whoever has it now
            self.scheduler.discard(actor.job.id)
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

    def _assign(self) -> Iterable[Assignment]:
        """Take every step that fits somewhere off the line and reserve its place there, all without waiting."""
        assigned: list[Assignment] = []
        while self.scheduler.line:
            now = self._clock.monotonic()
            placements = self.scheduler.plan(self.rooms(now), now)
            made = [assignment for placement in placements for assignment in self._reserved(placement)]
            assigned += made
            if sum(len(one.members) for one in made) == sum(len(one.members) for one in placements):
                break
        return assigned  # else some were of jobs that are gone: the room that they took is free

    def _lack(self, ready: Ready) -> str | None:
        if ready.demand.nbytes <= self._fleet.least_bytes:
            return None
        return admission.lack(
            ready.demand, [seat.hello for seat in self._fleet.serving(ready.model, ready.pool, ready.role)]
        )

    def stand_down(self, actor: JobActor) -> None:
        """No step of the job waits any more."""
        actor.lined_up = False
        self.scheduler.discard(actor.job.id)

    def rooms(self, now: float) -> list[Room]:
        """What the workers have left, derived from the units that are with them and the jobs at home there."""
        if self._counted_at != self._ledger.moves.count:
            self._counted_at, self._at_home = self._ledger.moves.count, {}
            for actor in self._ledger.actors.values():
                if actor.account is not None and actor.home is not None:
                    self._at_home.setdefault(actor.home, AtHome()).add(actor.account, actor.job.model.name)
        weights, jumbo_s, nothing = self.accounts.weights_at, self.scheduler.limits.jumbo_s, AtHome()
        return [
            seat.room(self._at_home.get(worker, nothing), weights(seat.hello.serves), jumbo_s, now)
            for worker, seat in self._fleet.seats.items()
        ]

    def _reserved(self, placement: Placement) -> list[Assignment]:
        """The units of a placement; those that turn out not to go together are each by itself."""
        seat = self._fleet.seats[placement.worker]
        together, apart = Assignment(seat, []), []
        batch, count = next(self._batches), len(placement.members)
        for ready in placement.members:
            actor = self._current(ready.job)
            following = self._following(actor) if actor is not None else None
            if actor is None or following is None or ready.bound != bool(actor.out):
                now = self._clock.monotonic()
                self.scheduler.shares.refund(ready.share, ready.demand.seconds, now, now)
            if actor is None:
                continue
            if following is None:  # the unit that is out may end its loop: what follows is known when it is back
                actor.lined_up = False
            elif ready.bound != bool(actor.out):
                self.line_up(actor)
            elif count == 1 or _goes_along(following.plan, ready):
                together.members.append((actor, self._reserve(actor, following, seat, ready, batch, count)))
            else:
                unit = self._reserve(actor, following, seat, ready, next(self._batches))
                apart.append(Assignment(seat, [(actor, unit)]))
        return [one for one in (together, *apart) if one.members]

    def _take_back(self, seat: Seat, unit: UnitId) -> None:
        """A unit that did not run and will not."""
        if (reserved := seat.outstanding.pop(unit, None)) is not None:
            self._refund(reserved)

    def _refund(self, reserved: Reserved) -> None:
        now = self._clock.monotonic()
        self.scheduler.shares.refund(reserved.share, reserved.charged_s, reserved.charged_at, now)

    def _following(self, actor: JobActor) -> Ahead | None:
        """The step to send next: the one after the state, or the one that is sure to follow the unit that is out."""
        assert actor.state is not None
        assert actor.plan is not None
        if not actor.out:
            return Ahead(actor.state, actor.plan)
        sent = actor.out[0]
        return driver.ahead(self._registry[actor.job.model.name], actor.state, sent.id, sent.plan)

    def _reserve(
        self, actor: JobActor, following: Ahead, seat: Seat, ready: Ready, batch: int, count: int = 1
    ) -> WorkUnit:
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
        now = self._clock.monotonic()
        if not seat.outstanding:
            seat.began_at = now
        priced = self.accounts.priced(actor, unit.plan, seat)
        loading_s = seat.loading_s(unit.id.job, priced.needs, now)
        seat.last, seat.modules = unit.id.job, ready.modules
        seat.outstanding[unit.id] = Reserved(
            batch=batch,
            model=actor.job.model.name,
            share=ready.share,
            demand=replace(ready.demand, seconds=ready.demand.seconds + loading_s) if loading_s else ready.demand,
            charged_s=ready.demand.seconds,
            charged_at=now,
            expected_s=self.accounts.share_s(priced, count) + loading_s,
            needs=priced.needs,
            priced=priced,
            alone=count == 1,
            fetches=fetch is not None,
        )
        return unit

    def _fetch(self, actor: JobActor, seat: Seat, lacks: AbstractSet[str]) -> Fetch | None:
        """What the worker that the job comes from has of what is lacking, where the two can reach each other."""
        holder = self._fleet.seats.get(actor.left.worker) if actor.left is not None else None
        if actor.left is None or holder is None or not _reaches(seat.hello, holder.hello):
            return None
        there = sorted(actor.left.digests & lacks)
        return Fetch(holder.hello.transfers, tuple(there)) if there else None

    def _current(self, job: str) -> JobActor | None:
        """The actor of a job whose entry in the line still stands for something."""
        actor = self._ledger.actors.get(job)
        return actor if actor is not None and actor.lined_up else None

    async def _send(self, seat: Seat, members: Sequence[Member]) -> bool:
        """Whether the worker could be reached."""
        for actor, _ in members:
            while actor.strays:
                await self._tell(actor.strays.pop(), Release(actor.job.id, actor.epoch))
        units = tuple(unit for _, unit in members)
        frames = [actor.inline[digest] for actor, unit in members for digest in unit.inline]
        return await self._tell(seat.worker, units[0] if len(units) == 1 else Batch(units), frames)

    async def _tell(self, worker: str, message: EngineMessage, frames: Sequence[bytes] = ()) -> bool:
        """Whether the worker could be reached. What could not be sent counts as lost on the way."""
        self._fleet.sending(worker)
        return await self._link.send(worker, message, frames)


def _reaches(worker: Hello, holder: Hello) -> bool:
    """Whether a worker can be given what another one holds: what is not a network's address is for one host."""
    return bool(holder.transfers) and (worker.host == holder.host or holder.transfers.startswith("tcp:"))


def _goes_along(plan: WorkPlan, ready: Ready) -> bool:
    """Whether a step is what it was grouped as: of one that follows what is out, more was not known."""
    return plan.together and ready.group is not None and (plan.loop, plan.kind) == (ready.group.loop, ready.group.kind)
