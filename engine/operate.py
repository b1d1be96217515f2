"""What people do to jobs: one path for a job that this engine drives and for one that only its log has.

A verb finds the job's actor, decides purely, and writes one append. On a job that nobody drives that append takes the
log over too, and the actor leaves again.
"""

import asyncio
from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from cards.folding import lacking
from engine import driver, share, verbs
from engine.actor import JobActor
from engine.clock import Clock
from engine.engine import Engine
from engine.errors import Draining, GoneOn, NoSuchPlace, NotAllowed, Overtaken, StoreTrouble
from engine.events import JobEvent
from engine.job import Job, fold
from engine.needs import tensors
from engine.past import Log, Past
from engine.reconcile import mismatch
from store.errors import StoreError

LOOK_S = 0.01
"""How often a move looks whether the job's running step is back."""

Decide = Callable[[JobActor], list[JobEvent]]


class Outcome(StrEnum):
    """What came of a verb: nothing, if it was so already."""

    DONE = "done"
    UNCHANGED = "unchanged"
    PLANNED = "planned"


class Operated(Struct, frozen=True):
    outcome: Outcome
    job: Job


class Migration(Struct, frozen=True, kw_only=True):
    """A move, or the plan of one: the job's next step, of this node, takes `nbytes` of tensors along."""

    outcome: Outcome
    job: str
    origin: str | None
    destination: str
    node: str | None
    step: int
    nbytes: int


class Operator:
    """Every verb raises JobNotFound, NotAllowed, Draining, StoreTrouble, HistoryError; what it returns is durable.

    Overtaken says that another one has written to the job's log meanwhile, DrivenElsewhere that another engine is to.
    """

    def __init__(self, engine: Engine, past: Past, clock: Clock) -> None:
        self._engine = engine
        self._ledger = engine.ledger
        self._past = past
        self._clock = clock

    async def pause(self, job_id: str, reason: str = "") -> Operated:
        return await self._do(job_id, lambda actor: verbs.pause(actor.job, reason))

    async def resume(self, job_id: str) -> Operated:
        return await self._do(job_id, self._resume)

    async def terminate(self, job_id: str, reason: str = "") -> Operated:
        return await self._do(job_id, lambda actor: verbs.terminate(actor.job, reason))

    async def quarantine(self, job_id: str, reason: str = "") -> Operated:
        return await self._do(job_id, lambda actor: verbs.quarantine(actor.job, reason))

    async def retry(self, job_id: str, reason: str = "") -> Operated:
        """Raises TensorsGone, Unrunnable and LoopFailed too."""
        return await self._revive(job_id, lambda job: verbs.retry(job, reason))

    async def lift(self, job_id: str) -> Operated:
        """Raises as `retry`."""
        return await self._revive(job_id, verbs.lift)

    async def rewind(self, job_id: str, to_step: int, reason: str = "") -> Operated:
        """Raises NoSuchStep too, and as `retry`."""
        log = await self._all_told(job_id)
        verbs.check("rewind", log.job)
        walked = await self._past.at(log, to_step, "to_step")

        def rewind(actor: JobActor) -> list[JobEvent]:
            if actor.epoch != log.epoch:  # steps may have been added since, but nobody has rewound it
                raise Overtaken(f"job {job_id} has changed hands")
            events = verbs.rewind(actor.job, to_step, walked.standing, reason)
            actor.state, actor.refolds = walked.state, walked.refolds
            actor.out.clear()
            return events

        return await self._do(job_id, rewind, fence=True)

    async def pin(self, job_id: str, step: int, reason: str = "") -> Operated:
        """What a step left stays, whatever retention lets go of. Raises NoSuchStep, and as `retry`."""
        log = await self._all_told(job_id)
        verbs.check("pin", log.job)
        await self._past.at(log, step, "step")  # which makes the bytes young: no sweep takes them before it is told

        def pin(actor: JobActor) -> list[JobEvent]:
            if actor.epoch != log.epoch:  # it may have been rewound, and the step be another one
                raise Overtaken(f"job {job_id} has changed hands")
            return verbs.pin(actor.job, step, reason, driven=self._ledger.drives(actor))

        return await self._do(job_id, pin)

    async def unpin(self, job_id: str, step: int) -> Operated:
        def unpin(actor: JobActor) -> list[JobEvent]:
            return verbs.unpin(actor.job, step, driven=self._ledger.drives(actor))

        return await self._do(job_id, unpin)

    async def move_away(self, job_id: str, version: int, to: str) -> Operated:
        """Its log up to `version` has been written to a file, and goes on in another store. Raises GoneOn too."""

        def decide(actor: JobActor) -> list[JobEvent]:
            events = verbs.move_away(actor.job, to)
            if events and (actor.version != version or actor.out):
                raise GoneOn(job_id, version)
            return events

        return await self._do(job_id, decide)

    async def migrate(
        self,
        job_id: str,
        *,
        pool: str | None = None,
        engine: str | None = None,
        reason: str = "",
        dry_run: bool = False,
    ) -> Migration:
        """To a pool or to an engine, once the step that is running is done. Raises NoSuchPlace too."""
        actor = await self._ledger.find(job_id)
        await self._heard(actor)
        if engine is not None:
            await self._check_engine(actor.job, engine)
        plan = self._plan(actor, pool, engine)
        if dry_run:
            return plan

        def decide(actor: JobActor) -> list[JobEvent]:
            nonlocal plan
            plan = self._plan(actor, pool, engine)
            return verbs.migrate(actor.job, pool, engine, reason, driven=self._ledger.drives(actor))

        try:
            if engine is not None:
                actor.parting = True
                self._engine.dispatcher.stand_down(actor)
            while actor.parting and actor.out and self._ledger.drives(actor):
                await self._clock.sleep(LOOK_S)
            operated = await self._do(job_id, decide)
        finally:
            actor.parting = False
            self._engine.look_for_work()
        return replace(plan, outcome=operated.outcome)

    # -- one turn -----------------------------------------------------------------------------------------------

    async def _do(self, job_id: str, decide: Decide, *, fence: bool = False) -> Operated:
        """With `fence` what is out under the old epoch decides nothing."""
        if self._engine.draining:
            raise Draining  # who writes now may wait for an answer until all has stopped
        actor = await self._ledger.find(job_id)
        try:
            events = decide(actor)
        except NotAllowed:
            await self._confirmed(actor)
            raise
        if not events:
            return Operated(Outcome.UNCHANGED, await self._confirmed(actor))
        told = self._ledger.write(actor, events, claim=fence)
        if actor.at_rest:
            await self._engine.dispatcher.release(actor)
        job = await asyncio.shield(told)
        self._engine.reconciler.unrunnable.pop(job_id, None)
        self._engine.look_for_work()
        return Operated(Outcome.DONE, job)

    async def _confirmed(self, actor: JobActor) -> Job:
        """The job, if it is what this engine takes it for: another one may have written to its log meanwhile.

        Raises Overtaken, StoreTrouble.
        """
        if self._ledger.drives(actor) and self._ledger.shared:
            return await asyncio.shield(self._ledger.write(actor, []))
        return await self._heard(actor)

    async def _heard(self, actor: JobActor) -> Job:
        """The job, once all that has been decided about it may be told."""
        return await asyncio.shield(actor.told) if self._ledger.drives(actor) else actor.job

    def _resume(self, actor: JobActor) -> list[JobEvent]:
        """A job of which a step is still out goes on here; any other is found and claimed like all that wait."""
        resumed = verbs.resume(actor.job)
        if not resumed or not actor.out:
            return resumed
        job = fold(actor.job, resumed[0])
        node = driver.node_of(job, self._engine.registry[job.model.name])
        return [*resumed, verbs.take(job, node, self._engine.settings.name)]

    # -- with a look back ---------------------------------------------------------------------------------------

    async def _revive(self, job_id: str, decide: Callable[[Job], list[JobEvent]]) -> Operated:
        """From where the job last was: a checkpoint of an ended job has no state any more, but the log has."""
        log = await self._all_told(job_id)
        if not decide(log.job):
            return Operated(Outcome.UNCHANGED, log.job)
        walked = await self._past.last(log)

        def revive(actor: JobActor) -> list[JobEvent]:
            if (actor.epoch, actor.version) != (log.epoch, log.version):
                raise Overtaken(f"job {job_id} has moved on")
            actor.state, actor.refolds = walked.state, walked.refolds
            return decide(actor.job)

        return await self._do(job_id, revive)

    async def _all_told(self, job_id: str) -> Log:
        """The log, with all that has been decided until now."""
        await self._heard(await self._ledger.find(job_id))
        return await self._past.read(job_id)

    # -- moving -------------------------------------------------------------------------------------------------

    def _plan(self, actor: JobActor, pool: str | None, engine: str | None) -> Migration:
        """Raises NoSuchPlace, NotAllowed."""
        job = actor.job
        changes = verbs.migrate(job, pool, engine, "", driven=self._ledger.drives(actor))
        if pool is not None:
            self._check_pool(job, pool)
        home = self._engine.fleet.seats.get(actor.home or "")
        family = self._engine.registry.get(job.model.name)
        at = home.hello.pool if home is not None else job.pool
        taken_along = lacking(tensors(job, actor.state), actor.refolds).stored
        return Migration(
            outcome=Outcome.PLANNED if changes else Outcome.UNCHANGED,
            job=job.id,
            origin=(at and f"pool:{at}") if pool is not None else (job.owner and f"engine:{job.owner}"),
            destination=f"pool:{pool}" if pool is not None else f"engine:{engine}",
            node=driver.node_of(job, family).name if family is not None else None,
            step=job.place.step,
            nbytes=0 if pool == at else sum(ref.nbytes for ref in taken_along.values()),
        )

    async def _check_engine(self, job: Job, engine: str) -> None:
        """Raises NoSuchPlace, StoreTrouble."""
        try:
            live = await self._engine.peers.live()
        except StoreError as error:
            raise StoreTrouble(str(error)) from error
        mine = engine == self._engine.settings.name
        if engine not in live and not mine:
            peers = ", ".join(sorted({self._engine.settings.name, *live}))
            raise NoSuchPlace(f"no engine {engine!r} works on this store; there are: {peers}")
        if mine and (problem := mismatch(job.model, self._engine.identities, self._engine.registry)):
            raise NoSuchPlace(f"engine {engine!r} cannot take it: {problem}")
        if not mine and not share.runs(live[engine], job.model):
            other = job.model.name in live[engine].models
            of = "the card and weights of " if other else ""
            raise NoSuchPlace(f"engine {engine!r} has no workers for {of}{job.model.name!r} now")

    def _check_pool(self, job: Job, pool: str) -> None:
        """Raises NoSuchPlace."""
        fleet = self._engine.fleet
        if fleet.serving(job.model, pool):
            return
        pools = sorted({seat.hello.pool for seat in fleet.seats.values()})
        if pool not in pools:
            raise NoSuchPlace(f"no worker of a pool {pool!r} is here; there are: {', '.join(pools) or 'none'}")
        raise NoSuchPlace(f"no worker of pool {pool!r} takes work for the card and weights of {job.model.name!r}")
