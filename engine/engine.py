"""The engine: claims jobs from the log, drives their loops on workers, and writes down what happened.

Four duties run for as long as it does: listen to workers, tell what has become durable, reconcile with the log, and
watch for workers that fell silent. Each is a public method; `run` only repeats them.
"""

import logging
from collections.abc import Callable
from enum import StrEnum

import anyio
from msgspec import Struct

from cards import codec
from cards.card import Node
from cards.registry import Registry
from cards.wire import Goodbye, Heartbeat, Hello, Introduce, Released, StepResult, WorkPlan
from engine import driver, verbs
from engine.actor import JobActor, restore, stream
from engine.clock import Clock
from engine.dispatch import AHEAD, Dispatcher
from engine.errors import JobNotFound, LoopFailed, StoreTrouble
from engine.events import JobCancelled, JobReleased
from engine.fleet import Fleet, Seat
from engine.hub import Hub
from engine.job import Job, State
from engine.ledger import Ledger
from engine.link import Arrived, Link
from engine.reconcile import Reconciler
from store.errors import StoreError
from store.journal import Journal

log = logging.getLogger("keyframe.engine")

LAST_WORDS_S = 0.05
"""What a process sent before it ended may still be on its way: its last result decides which step it died of."""


class EngineSettings(Struct, frozen=True, kw_only=True):
    name: str
    max_active: int = 256
    """Jobs that are held in memory and driven at once; the others wait in the log."""
    max_deaths: int = 3
    """Workers that a job may bring down, without completing a step in between, before it is failed for good."""
    window: int = 8
    """Steps of one job that may be executed and not yet durable."""
    reconcile_s: float = 1.0
    watch_s: float = 0.5
    silent_s: float = 5.0
    cancel_grace_s: float = 30.0
    """How long a running step may hold up a cancel before its worker is killed."""


class Outcome(StrEnum):
    """What came of asking to cancel a job."""

    CANCELLED = "cancelled"
    CANCELLING = "cancelling"
    ALREADY_TERMINAL = "already_terminal"


class Engine:
    """`kill` ends a worker's process if it is one of ours; others are only given up."""

    def __init__(
        self,
        *,
        journal: Journal,
        link: Link,
        registry: Registry,
        clock: Clock,
        settings: EngineSettings,
        kill: Callable[[Hello], None] = lambda worker: None,
    ) -> None:
        self.registry = registry
        self.settings = settings
        self.hub = Hub()
        self.fleet = Fleet(settings.silent_s)
        self.ledger = Ledger(journal, clock, self.hub, self._on_told, self._on_dropped)
        self.dispatcher = Dispatcher(self.ledger, self.fleet, link, registry)
        self.draining = False
        self.steps = 0
        self.moved_at = clock.monotonic()
        """When a worker last did something, on the monotonic clock."""
        self.reconciler = Reconciler(
            journal,
            self.ledger,
            registry,
            engine=settings.name,
            max_active=settings.max_active,
            claimed=self._go_on,
        )
        self._journal = journal
        self._link = link
        self._clock = clock
        self._kill = kill
        self._cancelling_since: dict[str, float] = {}
        self._introduced_at: dict[str, float] = {}
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
            await self._stopped.wait()
            tasks.cancel_scope.cancel()

    async def drain(self, grace_s: float) -> None:
        """Take no more work, let the running steps end, hand the jobs back, and stop."""
        self.draining = True
        deadline = self._clock.monotonic() + grace_s
        while any(seat.outstanding for seat in self.fleet.seats.values()) and self._clock.monotonic() < deadline:
            await self._clock.sleep(0.01)
        for actor in list(self.ledger.actors.values()):
            if actor.job.state is State.RUNNING:
                actor.out.clear()
                self.ledger.write(actor, [JobReleased(engine=self.settings.name)])
        with anyio.move_on_after(grace_s):
            await self.ledger.settled()
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

    async def reconcile(self) -> None:
        """Send again what the blob store refused, and take over open jobs that nobody drives."""
        if self.draining:
            return
        for actor in self.ledger.actors.values():
            actor.waits = False
            self._line_up(actor)
        await self._dispatch()
        await self.reconciler.tick()

    # -- workers ------------------------------------------------------------------------------------------------

    async def handle(self, arrived: Arrived) -> None:
        """One message from a worker."""
        worker, message = arrived.worker, arrived.message
        now = self._clock.monotonic()
        match message:
            case Hello():
                await self._join(message, now)
            case _ if not self.fleet.heard(worker, now, message if isinstance(message, Heartbeat) else None):
                await self._introduce(worker, now)
            case StepResult():
                await self._result(worker, message, arrived.frames)
            case Released(job=job):
                await self._released(worker, job)
            case Goodbye(reason=reason, clean=clean):
                await self.lose(worker, reason, blame=not clean)
            case Heartbeat():
                pass

    async def lose(self, worker: str, reason: str, *, blame: bool = True) -> None:
        """A worker is gone, or given up: what was with it goes on elsewhere."""
        if (seat := self.fleet.leave(worker)) is not None:
            self._lost(seat, reason, blame=blame)
            await self._dispatch()

    async def lose_process(self, host: str, pid: int, reason: str) -> bool:
        """The same for a worker that is known by its process, which has ended. Whether there was one."""
        await self._clock.sleep(LAST_WORDS_S)
        lost = [seat.worker for seat in self.fleet.seats.values() if (seat.hello.host, seat.hello.pid) == (host, pid)]
        for worker in lost:
            await self.lose(worker, reason)
        return bool(lost)

    async def watch(self) -> None:
        """Give up workers that have been silent too long, or that hold up a cancel beyond its grace."""
        now = self._clock.monotonic()
        for seat in self.fleet.silent(now):
            await self.lose(seat.worker, f"silent for {self.settings.silent_s:g} s")
        for job, since in list(self._cancelling_since.items()):
            actor = self.ledger.actors.get(job)
            if actor is None or actor.job.state is not State.CANCELLING:
                del self._cancelling_since[job]
            elif actor.home and now - since > self.settings.cancel_grace_s:
                await self.lose(actor.home, f"a cancelled step ran on for {self.settings.cancel_grace_s:g} s")

    async def _join(self, hello: Hello, now: float) -> None:
        before = self.fleet.join(hello, now)
        self._introduced_at.pop(hello.worker, None)
        strange = [model.name for model in hello.models if self.reconciler.identities.get(model.name) != model]
        if strange:
            log.warning("worker %s has another card or other weights for: %s", hello.worker, ", ".join(strange))
        log.info("worker %s joined pool %s", hello.worker, hello.pool)
        if before is not None:
            self._lost(before, "the worker started again", blame=False)
        await self._dispatch()

    async def _introduce(self, worker: str, now: float) -> None:
        if now - self._introduced_at.get(worker, -self.settings.silent_s) >= self.settings.silent_s:
            self._introduced_at[worker] = now
            await self._link.send(worker, Introduce(self.settings.name))

    async def _result(self, worker: str, result: StepResult, frames: tuple[bytes, ...]) -> None:
        self.moved_at = self._clock.monotonic()
        actor = self.ledger.actors.get(result.id.job)
        answered = self.fleet.answered(worker, result.id, result.seconds)
        if answered and actor is not None and actor.out and actor.out[0].id == result.id:
            arrived = dict(zip(result.inline, frames, strict=False))
            if any(codec.digest(arrived.get(digest, b"")) != digest for digest in result.inline):
                await self.lose(worker, "sent bytes that do not hash to their name", blame=False)
                return
            sent = actor.out.popleft()
            if actor.job.state is State.RUNNING:
                self._fold_in(actor, worker, sent.plan, result, arrived)
            await self._go_on(actor)
        else:
            await self._dispatch()  # it decides nothing, but the worker has room again

    def _fold_in(
        self, actor: JobActor, worker: str, plan: WorkPlan, result: StepResult, arrived: dict[str, bytes]
    ) -> None:
        if result.error is not None:
            if result.error.kind == "store_trouble":
                self._wait_for_store(actor, result.error.message)
            else:
                self._fail(actor, result.error.kind, result.error.message)
            return
        assert actor.state is not None
        done = driver.completed(self._node(actor.job), plan, result, worker)
        try:
            turn = driver.fold_in(actor.job, self.registry[actor.job.model.name], actor.state, done)
        except LoopFailed as error:
            self._fail(actor, "error", str(error))
            return
        self.steps += 1
        actor.state, actor.plan = turn.state, turn.plan
        actor.held = actor.held.union(ref.digest for ref in result.tensors.values())
        self.ledger.write(actor, [done, *turn.events], inline=arrived)
        actor.keep_inline(arrived)

    def _wait_for_store(self, actor: JobActor, message: str) -> None:
        """The step itself is sound: it is sent again with the next tick."""
        self.ledger.trouble = message
        actor.waits = True
        actor.out.clear()  # what follows was promised a tensor that is not there
        actor.held = frozenset()
        log.warning("a step waits for the store: %s", message, extra={"job": actor.job.id})

    def _fail(self, actor: JobActor, kind: str, message: str) -> None:
        self.ledger.write(actor, verbs.fail(actor.job, self._node(actor.job), kind, message))

    async def _released(self, worker: str, job: str) -> None:
        self.fleet.released(worker, job)
        actor = self.ledger.actors.get(job)
        if actor is not None and actor.home == worker and actor.job.state is State.CANCELLING:
            actor.leave()
            self.ledger.write(actor, [JobCancelled()])
        await self._dispatch()

    def _lost(self, seat: Seat, reason: str, *, blame: bool) -> None:
        log.warning("lost worker %s: %s", seat.worker, reason)
        self._kill(seat.hello)
        running = next(iter(seat.outstanding), None) if blame else None
        for actor in [actor for actor in self.ledger.actors.values() if actor.home == seat.worker]:
            units = [sent.id for sent in actor.out]
            actor.leave()
            if not units and actor.job.state is not State.CANCELLING:
                continue  # it was between two steps: its next one goes elsewhere
            blamed = running in units
            limit = self.settings.max_deaths
            node = self._node(actor.job)
            events = verbs.lose_worker(actor.job, node, seat.worker, reason, blamed=blamed, max_deaths=limit)
            self.ledger.write(actor, events)
            self._line_up(actor)

    # -- going on -----------------------------------------------------------------------------------------------

    async def cancel(self, job_id: str, reason: str = "") -> Outcome:
        """Raises JobNotFound, StoreTrouble. What it returns is durable."""
        actor = self.ledger.actors.get(job_id)
        if actor is None:
            return await self._cancel_in_log(job_id, reason)
        events = verbs.cancel(actor.job, reason, running=bool(actor.out))
        if events:
            self._cancelling_since[job_id] = self._clock.monotonic()
            actor.lined_up = False
            told = self.ledger.write(actor, events)
            await self.dispatcher.release(actor)
            job = await told
        else:
            job = await self.settle(actor)
        if job.state is State.CANCELLED and events:
            return Outcome.CANCELLED
        return Outcome.ALREADY_TERMINAL if job.terminal else Outcome.CANCELLING

    async def _cancel_in_log(self, job_id: str, reason: str) -> Outcome:
        """Nobody drives this job: claiming it and cancelling it are one append."""
        try:
            loaded = await self._journal.load(stream(job_id))
        except StoreError as error:
            raise StoreTrouble(str(error)) from error
        if loaded is None:
            raise JobNotFound(job_id)
        if job_id in self.ledger.actors:
            return await self.cancel(job_id, reason)
        actor = JobActor(self._journal, loaded, restore(loaded))
        events = verbs.cancel(actor.job, reason, running=False)
        if not events:
            return Outcome.ALREADY_TERMINAL if actor.job.terminal else Outcome.CANCELLING
        self.ledger.actors[job_id] = actor
        await self.ledger.write(actor, events, claim=True)
        self.reconciler.unrunnable.pop(job_id, None)
        return Outcome.CANCELLED

    async def settle(self, actor: JobActor) -> Job:
        """The job once all that has been decided of it so far is durable."""
        with self.hub.listen(actor.job.id) as news:
            while actor.undurable:
                await news.wait()
        return actor.durable

    async def _go_on(self, actor: JobActor) -> None:
        """The job's next step may run, or there is none."""
        if actor.job.terminal:
            await self.dispatcher.release(actor)
        self._line_up(actor)
        await self._dispatch()

    async def _dispatch(self) -> None:
        if self.draining:
            return
        for seat in await self.dispatcher.dispatch():
            self._lost(seat, "unreachable", blame=False)

    async def _on_told(self, actor: JobActor) -> None:
        """Durability caught up: a job that waited for it goes on, and one that has ended makes room."""
        if actor.durable.terminal:
            self.look_for_work()
        elif self._line_up(actor):
            await self._dispatch()

    async def _on_dropped(self, actor: JobActor) -> None:
        """A job's append failed: its worker forgets it, and reconciling will find it again."""
        await self.dispatcher.release(actor)

    def _line_up(self, actor: JobActor) -> bool:
        """Line the job's next step up, if none is lined up, and its units are not too far ahead of worker and disk."""
        idle = actor.job.state is State.RUNNING and not actor.lined_up and not actor.waits
        may = idle and len(actor.out) < AHEAD and actor.undurable + len(actor.out) < self.settings.window
        if may:
            self.dispatcher.line_up(actor)
        return may

    def _node(self, job: Job) -> Node:
        return driver.node_of(job, self.registry[job.model.name])
