"""The engine: claims jobs from the log, drives their loops on workers, and writes down what happened.

Four duties run for as long as it does: listen to workers, tell what has become durable, reconcile with the log, and
watch for workers that fell silent. Each is a public method; `run` only repeats them.
"""

import logging
from collections.abc import Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any

import anyio

from cards import codec
from cards.registry import Registry, identity
from cards.wire import (
    Goodbye,
    Heartbeat,
    Hello,
    Released,
    Shutdown,
    Sleep,
    StepResult,
    Wake,
)
from engine.accounts import Accounts
from engine.actor import JobActor
from engine.calibration import Calibration
from engine.cancel import Canceller
from engine.clock import Clock
from engine.dispatch import AHEAD, Dispatcher
from engine.errors import Overtaken
from engine.events import JobReleased
from engine.fleet import Fleet, Seat
from engine.hub import Hub
from engine.intake import Aside, in_a_thread
from engine.job import State
from engine.joining import Door
from engine.lease import Lease
from engine.ledger import Ledger
from engine.link import Arrived, Link
from engine.peers import Peers
from engine.reconcile import Reconciler
from engine.results import Results
from engine.scheduling.policy import POLICIES
from engine.scheduling.scheduler import Scheduler
from engine.served import Served
from engine.settings import EngineSettings as EngineSettings
from store.journal import Journal, News

log = logging.getLogger("keyframe.engine")

FREES = frozenset(
    {
        "job_submitted", "job_released", "job_resumed", "job_retried", "job_rewound", "job_migrated", "job_imported",
        "quarantine_lifted",
    }
)  # fmt: skip
"""After these events a job is there for the taking."""

LAST_WORDS_S = 0.05
"""What a process sent before it ended may still be on its way: its last result decides which step it died of."""


class Engine:
    """`kill` ends a worker's process if it is one of ours; others are only given up. Sizes are read `aside`."""

    def __init__(
        self,
        *,
        journal: Journal,
        link: Link,
        registry: Registry,
        clock: Clock,
        settings: EngineSettings,
        kill: Callable[[Hello], None] = lambda worker: None,
        aside: Aside = in_a_thread,
    ) -> None:
        self.registry = registry
        self.settings = settings
        self.hub = Hub()
        self.requests = Hub()
        """Who waits for what engines ask of each other."""
        self.fleet = Fleet(settings.silent_s)
        self.identities = {name: identity(family) for name, family in registry.items()}
        """Each card and its weights, as they are here."""
        self.served = Served(registry, self.identities, self.fleet)
        self.peers = Peers(journal, settings.name)
        self.lease = Lease(
            journal,
            clock,
            engine=settings.name,
            ttl_s=settings.lease_s,
            url=settings.url,
            models=self.served.offers,
            lapsed=self._lapsed,
        )
        self.ledger = Ledger(
            journal,
            clock,
            self.hub,
            lease=self.lease.name,
            others=self.peers.others,
            on_told=self._on_told,
            on_dropped=self._on_dropped,
        )
        self.accounts = Accounts(registry, self.fleet, POLICIES[settings.policy], clock, aside, self.peers)
        self.dispatcher = Dispatcher(
            self.ledger,
            self.fleet,
            link,
            registry,
            clock,
            self.accounts,
            Scheduler(POLICIES[settings.policy], settings.limits),
        )
        self.canceller = Canceller(self.ledger, self.dispatcher, clock)
        self.results = Results(registry, self.ledger)
        self.duties: list[Callable[[], Coroutine[Any, Any, None]]] = []
        """What else is to run for as long as the engine does."""
        self.draining = False
        self.moved_at = clock.monotonic()
        """When a worker last did something, on the monotonic clock."""
        self.reconciler = Reconciler(
            journal,
            self.ledger,
            registry,
            self.identities,
            engine=settings.name,
            max_active=settings.max_active,
            monotonic=clock.monotonic,
            patience_s=3 * settings.reconcile_s,
            models=self.served.offers,
            served=lambda actor: not self.fleet.seats or self.served.next_of(actor.job),
            claimed=self._claimed,
        )
        self._journal = journal
        self._link = link
        self._clock = clock
        self._kill = kill
        self._lapses: list[JobActor] = []
        self._reconciling = anyio.Lock()
        self._door = Door(
            self.fleet,
            link,
            clock,
            blobs=settings.blobs,
            silent_s=settings.silent_s,
            identities=self.identities,
        )
        self.calibration = Calibration(journal, self.accounts.costs, clock, lease=self.lease.name)
        self.duties.append(self.calibration.keep)
        self._heard = anyio.Event()
        self._work = anyio.Event()
        self._stopped = anyio.Event()

    # -- running ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until `drain` has finished. A duty that fails takes the engine down; the log brings it back."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.ledger.tell)
            tasks.start_soon(self._listen)
            tasks.start_soon(self._reconcile)
            tasks.start_soon(self._watch)
            tasks.start_soon(self._keep_lease)
            tasks.start_soon(self._follow)
            tasks.start_soon(self.dispatcher.keep_time, self._dispatch)
            for duty in self.duties:
                tasks.start_soon(duty)
            await self._stopped.wait()
            tasks.cancel_scope.cancel()

    async def drain(self, grace_s: float) -> None:
        """Take no more work, let the running steps end, hand the jobs back, and stop."""
        self.draining = True
        async with self._reconciling:  # who is being claimed now is handed back too
            for actor in list(self.ledger.actors.values()):
                await self.dispatcher.release(actor)  # what is queued behind the running step need not run
        with anyio.move_on_after(grace_s):
            while any(seat.outstanding for seat in self.fleet.seats.values()):
                self._heard = anyio.Event()
                await self._heard.wait()
        for actor in list(self.ledger.actors.values()):
            if actor.job.state is State.RUNNING:
                self.ledger.write(actor, [JobReleased(engine=self.settings.name)])
        with anyio.move_on_after(grace_s):
            await self.ledger.settled()
            await self.calibration.save()
            await self.lease.end()
        self.hub.close()
        self._stopped.set()

    def look_for_work(self) -> None:
        """Something was submitted, or there is room: reconcile now."""
        self._work.set()

    async def _listen(self) -> None:
        while True:
            await self.handle(await self._link.receive())

    async def _reconcile(self) -> None:
        while True:
            self._work = anyio.Event()
            await self.reconcile()
            with anyio.move_on_after(self.settings.reconcile_s):
                await self._work.wait()

    async def _watch(self) -> None:
        last = self._clock.monotonic()
        while True:
            await self._clock.sleep(self.settings.watch_s)
            now = self._clock.monotonic()
            slept = now - last > self.settings.watch_s + self.settings.silent_s / 2
            if not slept:  # else it was this process that was silent, not the workers
                await self.watch()
            last = now

    async def _keep_lease(self) -> None:
        while self._journal.shared:
            fresh = not self.lease.held
            await self.renew()
            if fresh and self.lease.held:
                self.look_for_work()
            await self._clock.sleep(self.lease.pause_s)

    async def _follow(self) -> None:
        """Wake those who wait for what other engines write, and take what they leave."""
        async with aclosing(self._journal.news()) as pages:
            async for news in pages:
                for each in news:
                    await self._heard_of(each)
                if any(each.type in FREES for each in news):
                    self.look_for_work()

    async def _heard_of(self, news: News) -> None:
        job_id = news.stream.removeprefix("job/")
        if (actor := self.ledger.actors.get(job_id)) is not None:
            with suppress(Overtaken):
                await self.ledger.overtaken(actor, news.epoch)
        self.reconciler.unrunnable.pop(job_id, None)
        self.hub.wake(job_id)
        self.requests.wake(news.stream)
        self.requests.wake(news.stream.rpartition("/")[0])  # whoever waits for any that is asked of one engine

    async def renew(self) -> None:
        """Keep the lease. If it has run out, what was driven under it is let go of first."""
        await self.lease.renew()
        await self._let_go()

    async def reconcile(self) -> None:
        """Send again what the blob store refused, and take over open jobs that nobody drives."""
        async with self._reconciling:
            if self.draining or not self.lease.check():
                return
            for actor in self.ledger.actors.values():
                actor.waits = actor.waits and bool(actor.out)  # what was sent ahead of it must be back first
                self._line_up(actor)
            await self._dispatch()
            await self.reconciler.tick()

    async def _claimed(self, actor: JobActor) -> None:
        if len(self.ledger.actors) == 1:
            self.moved_at = self._clock.monotonic()  # there was nothing to do: it is not late
        await self.accounts.open(actor)
        await self._go_on(actor)

    # -- workers ------------------------------------------------------------------------------------------------

    async def handle(self, arrived: Arrived) -> None:
        """One message from a worker."""
        worker, message = arrived.worker, arrived.message
        now = self._clock.monotonic()
        match message:
            case Hello():
                await self._join(message, now)
            case _ if not self.fleet.heard(worker, now, message if isinstance(message, Heartbeat) else None):
                await self._door.ask(worker, now)
            case StepResult():
                await self._result(worker, message, arrived.frames)
            case Released():
                self.dispatcher.dropped(worker, message.dropped)
                self.canceller.released(worker, message)
                await self._dispatch()
            case Goodbye():
                await self.lose(worker, message.reason, blame=not message.clean)
            case Heartbeat():
                if self.fleet.missed(worker, message, now):  # it is there, and will be asked to introduce itself again
                    await self.lose(worker, "messages were lost between it and the engine", blame=False)
        self._heard.set()

    async def lose(self, worker: str, reason: str, *, blame: bool = True) -> None:
        """A worker is gone: what was with it goes on elsewhere."""
        if (seat := self.fleet.leave(worker)) is not None:
            self._lost(seat, reason, blame=blame)
            await self._fleet_changed()

    async def give_up(self, worker: str, reason: str, *, blame: bool = True) -> None:
        """A worker is there and of no use: it is lost, and its process is ended if it is one of ours."""
        if worker in self.fleet.seats:
            self._kill(self.fleet.seats[worker].hello)
            await self.lose(worker, reason, blame=blame)

    async def drain_worker(self, worker: str) -> None:
        """A worker gets no more work: its jobs go on elsewhere after the step they are in, and then it leaves."""
        self.fleet.seats[worker].draining = True
        await self._fleet_changed()

    async def tell_worker(self, worker: str, message: Sleep | Wake) -> None:
        """It obeys between two steps; its next heartbeat says what came of it."""
        self.fleet.sending(worker)
        await self._link.send(worker, message)

    async def lose_process(self, host: str, pid: int, reason: str) -> bool:
        """A worker's process has ended. Whether it had come so far as to join."""
        await self._clock.sleep(LAST_WORDS_S)
        for seat in list(self.fleet.seats.values()):
            if (seat.hello.host, seat.hello.pid) == (host, pid):
                await self.lose(seat.worker, reason)
        return self._door.ended(host, pid)

    async def watch(self) -> None:
        """Give up workers that have been silent too long, or that hold up a cancel beyond its grace, and look again at
        what waits: more is known by now of how long it takes.
        """
        self.lease.check()
        await self._let_go()
        self.dispatcher.tidy()
        self._look_again()
        for actor, lack in self.dispatcher.too_large(self._clock.monotonic() - self.settings.patience_s):
            self.results.fail(actor, "too_large", lack)
            await self._go_on(actor)
        for seat in self.fleet.silent(self._clock.monotonic()):
            await self.give_up(seat.worker, f"silent for {self.settings.silent_s:g} s")
        for worker in self.canceller.overdue(self.settings.cancel_grace_s):
            await self.give_up(worker, f"a cancelled step ran on for {self.settings.cancel_grace_s:g} s")

    async def _join(self, hello: Hello, now: float) -> None:
        if await self._door.refuses(hello):
            return
        if self._door.is_outdated(hello):
            seat = self.fleet.seats.get(hello.worker)
            if seat is not None and seat.hello != hello:  # it obeyed an engine of before, and holds nothing any more
                await self.lose(hello.worker, "it was asked to drop all that it held", blame=False)
                await self._door.ask(hello.worker, now)
            return
        before = self.fleet.join(hello, now)
        self._door.has_let_in(hello)
        if before is not None:
            self._lost(before, "the worker started again", blame=False)
        await self._fleet_changed()

    async def _fleet_changed(self) -> None:
        """What fits somewhere is not what it was."""
        self._look_again()
        await self._dispatch()

    def _look_again(self) -> None:
        for actor in self.ledger.actors.values():
            if actor.lined_up or actor.job.id in self.dispatcher.unfit:
                self._line_up(actor, again=True)

    async def _result(self, worker: str, result: StepResult, frames: tuple[bytes, ...]) -> None:
        self.moved_at = self._clock.monotonic()
        actor = self.ledger.actors.get(result.id.job)
        reserved = self.dispatcher.answered(worker, result)
        if reserved is None or actor is None or not actor.out or actor.out[0].id != result.id:
            if actor is None or actor.home != worker:  # what it made is of no use, and nobody else would tell it so
                await self.dispatcher.forget(worker, result.id)
            await self._dispatch()  # it decides nothing, but the worker has room again
            return
        if not codec.are(frames, result.inline):
            await self.give_up(worker, "sent bytes that do not hash to their name", blame=False)
            return
        arrived = dict(zip(result.inline, frames, strict=True))
        sent = actor.out.popleft()
        if actor.job.state in (State.RUNNING, State.PAUSED) and not actor.waits:
            self.results.fold_in(actor, worker, sent.plan, result, arrived)
        await self.dispatcher.dismiss(actor)
        await self._go_on(actor, waits=not reserved.alone and self.fleet.at_it(worker, reserved.batch))

    def _lost(self, seat: Seat, reason: str, *, blame: bool) -> None:
        log.warning("lost worker %s: %s", seat.worker, reason)
        self.accounts.costs.left(seat.worker)
        running = seat.running if blame else ()
        self.dispatcher.lost(seat, running)
        for actor in self._lent_by(seat):
            actor.left = None
        for actor in [actor for actor in self.ledger.actors.values() if actor.home == seat.worker]:
            units = [sent.id for sent in actor.out]
            actor.leave()
            if actor.job.terminal or (not units and actor.job.state is not State.CANCELLING):
                self._line_up(actor, again=True)
                continue  # it has ended, or was between two steps: its next one goes elsewhere
            blamed = any(unit in running for unit in units)
            self.results.lose(actor, seat.worker, reason, blamed=blamed, max_deaths=self.settings.max_deaths)
            if actor.at_rest:
                self._lapses.append(actor)  # the worker that it came from may still hold what it was to fetch
            self._line_up(actor, again=True)

    # -- going on -----------------------------------------------------------------------------------------------

    async def _go_on(self, actor: JobActor, *, waits: bool = False) -> None:
        """The job's next step may run, or there is none. It `waits` for those that were executed with the last one."""
        if actor.at_rest:
            await self.dispatcher.release(actor)
            self.ledger.let_go(actor)
        self._line_up(actor, again=True)
        if not waits:
            await self._dispatch()

    async def _dispatch(self) -> None:
        if self.draining or not self.lease.check():
            return
        while unsent := await self.dispatcher.dispatch():
            for actor in unsent:
                self._line_up(actor)
        for seat in [seat for seat in self.fleet.drained() if not self._lent_by(seat)]:
            seat.dismissed = True
            await self._link.send(seat.worker, Shutdown())

    def _lent_by(self, seat: Seat) -> list[JobActor]:
        """Those whose tensors another worker may be fetching from this one."""
        left = [(actor, actor.left) for actor in self.ledger.actors.values()]
        return [actor for actor, before in left if before is not None and before.worker == seat.worker]

    async def _on_told(self, actor: JobActor) -> None:
        """Durability caught up: a job that waited for it goes on, and one that has left makes room."""
        if not self.ledger.drives(actor):
            self.look_for_work()
        elif self._line_up(actor):
            await self._dispatch()

    async def _on_dropped(self, actor: JobActor) -> None:
        """A job's append failed: its worker forgets it, and reconciling will find it again."""
        await self.dispatcher.release(actor)

    def _lapsed(self) -> None:
        self._lapses += self.ledger.forget()

    async def _let_go(self) -> None:
        """Have the workers forget the jobs whose lease ran out, and those that ended with their worker."""
        while self._lapses:
            await self.dispatcher.release(self._lapses.pop())

    def _line_up(self, actor: JobActor, *, again: bool = False) -> bool:
        """Line the job's next step up, if its units are not too far ahead of worker and disk. Whether it is new there.

        One that is lined up stays as it is, or with `again` is looked at once more.
        """
        idle = actor.job.state is State.RUNNING and not (actor.waits or actor.parting)
        if actor.lined_up:
            if again and idle:
                self.dispatcher.line_up(actor)
            return False
        may = idle and len(actor.out) < AHEAD and actor.undurable + len(actor.out) < self.settings.window
        if may:
            self.dispatcher.line_up(actor)
        return may
