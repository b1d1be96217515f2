"""The reconcile loop: takes open jobs that nobody drives over from their logs. There is no other way to start one."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from cards.card import Node
from cards.errors import UnusableModel
from cards.registry import Registry
from cards.wire import ModelIdentity
from engine import driver, share, verbs
from engine.actor import JobActor, restore, stream
from engine.errors import HistoryError, LoopFailed
from engine.events import JobCancelled, JobEvent, JobReleased
from engine.job import Job, State, fold
from engine.ledger import Ledger
from engine.needs import needs
from store.errors import CorruptBlob, StoreError
from store.journal import JobRow, Journal, Loaded

log = logging.getLogger("keyframe.reconcile")

CLAIMS_AT_ONCE = 64
"""Jobs whose state is read together: bounds what recovery holds in memory."""

CROWD = 4
"""How many times `max_active` are held in memory at most, with those that no worker is there for."""


class Reconciler:
    """`claimed` is called with each actor whose claim has been queued.

    At most `max_active` jobs are driven at once; one whose model no worker is there for (`served`) does not count.
    Where several engines share a store, each takes its share, and after `patience_s` what another has left. What has
    waited here as long for a worker, and would find one elsewhere, is given back; `models` are those with workers here.
    """

    def __init__(
        self,
        journal: Journal,
        ledger: Ledger,
        registry: Registry,
        identities: Mapping[str, ModelIdentity],
        *,
        engine: str,
        max_active: int,
        monotonic: Callable[[], float],
        patience_s: float,
        models: Callable[[], Sequence[str]],
        served: Callable[[JobActor], bool],
        claimed: Callable[[JobActor], Awaitable[None]],
    ) -> None:
        self.unrunnable: dict[str, str] = {}
        """Open jobs that this engine has no card or weights for, and why."""
        self._identities = identities
        self._journal = journal
        self._ledger = ledger
        self._registry = registry
        self._engine = engine
        self._max_active = max_active
        self._monotonic = monotonic
        self._patience_s = patience_s
        self._open_since: dict[str, float] = {}
        self._idle_since: dict[str, float] = {}
        self._models = models
        self._served = served
        self._claimed = claimed

    async def tick(self) -> None:
        """Claim what is open and undriven, in the order of work, as far as there is room."""
        try:
            if self._journal.shared:
                await self._give_back()
            unclaimed = await self._unclaimed()
            for first in range(0, len(unclaimed), CLAIMS_AT_ONCE):
                await self.claim(unclaimed[first : first + CLAIMS_AT_ONCE])
        except StoreError as error:
            self._ledger.trouble = str(error)
            log.warning("cannot look for work: %s", error)

    async def claim(self, job_ids: Sequence[str]) -> None:
        """Take jobs over from their logs and go on where they were. Raises StoreError."""
        with self._ledger.departures() as departed:
            found = await self._journal.load_many([stream(job_id) for job_id in job_ids])
            loaded = [(job_id, found[stream(job_id)]) for job_id in job_ids if stream(job_id) in found]
            actors = [actor for job_id, one in loaded if (actor := self._actor(job_id, one)) is not None]
            for actor, damage in zip(actors, await self._load_inline(actors), strict=True):
                if actor.job.id not in {*self._ledger.actors, *departed}:  # somebody may have been at it meanwhile
                    await self._take_over(actor, damage)

    async def _unclaimed(self) -> list[str]:
        actors, trouble = self._ledger.actors, self._ledger.trouble
        limit = self._max_active + len(actors) + len(self.unrunnable)
        rows = await self._journal.claimable(self._engine, limit)
        there = {row.id for row in rows}
        self.unrunnable = {job: why for job, why in self.unrunnable.items() if job in there}
        unclaimed = await self._ours([row for row in rows if row.id not in actors and row.id not in self.unrunnable])
        if not actors and not unclaimed:
            self._ledger.trouble = None  # nothing is left to try it on; whoever writes next will find out
        driven = sum(map(self._served, actors.values()))
        room = max(0, min(self._max_active - driven, CROWD * self._max_active - len(actors)))
        return unclaimed[: min(1, room) if trouble else room]  # one is enough to try a store in trouble

    async def _ours(self, rows: Sequence[JobRow]) -> list[str]:
        """Those that are for this engine to take, or that another one has left for too long."""
        now = self._monotonic()
        self._open_since = {row.id: self._open_since.get(row.id, now) for row in rows}
        if not self._journal.shared or not rows:
            return [row.id for row in rows]
        engines = await self._journal.engines()
        return [
            row.id
            for row in rows
            if share.ours(row, self._engine, engines) or share.overdue(row, self._open_since, now, self._patience_s)
        ]

    async def _give_back(self) -> None:
        """Jobs that nobody here works on, and somebody elsewhere would: an engine may lose its workers for good."""
        if not (self._idle_since or self._idle()):
            return
        engines = await self._journal.engines()
        others = [engine for engine in engines if engine.left_s > 0 and engine.name != self._engine]
        now, idle = self._monotonic(), self._idle()
        self._idle_since = {actor.job.id: self._idle_since.get(actor.job.id, now) for actor in idle}
        for actor in idle:
            waited = now - self._idle_since[actor.job.id] > self._patience_s
            if waited and any(share.runs(engine, actor.job.model) for engine in others):
                self._ledger.write(actor, [JobReleased(engine=self._engine)])

    def _idle(self) -> list[JobActor]:
        here = self._models()
        running = [actor for actor in self._ledger.actors.values() if actor.job.state is State.RUNNING]
        return [actor for actor in running if not actor.out and actor.job.model.name not in here]

    def _actor(self, job_id: str, loaded: Loaded) -> JobActor | None:
        """One for a job that this engine can go on with, or that it has and must hand on."""
        try:
            saved = restore(loaded)
        except HistoryError as error:
            self._leave(job_id, str(error))
            return None
        if not saved.job.open:
            return None
        if problem := mismatch(saved.job.model, self._identities, self._registry):
            self._leave(job_id, problem)
            if not self._journal.shared or saved.job.owner != self._engine:
                return None
        return JobActor(self._journal, loaded, saved)

    async def _take_over(self, actor: JobActor, damage: str | None) -> None:
        if actor.job.id in self.unrunnable:  # no other engine would take what is this one's
            self._ledger.write(actor, verbs.hand_on(actor.job, self._engine))
            return
        taken = verbs.take(actor.job, self._node(actor.job), self._engine)
        following = self._going_on(actor, fold(actor.job, taken), damage)
        self._ledger.write(actor, [taken, *following])
        await self._claimed(actor)

    def _going_on(self, actor: JobActor, job: Job, damage: str | None) -> Sequence[JobEvent]:
        """What follows from taking a job over. Nothing of it runs anywhere: whoever had it can write no more."""
        family = self._registry[job.model.name]
        if job.state is State.CANCELLING:
            return [JobCancelled()]
        if damage:
            return verbs.fail(job, self._node(job), "corrupt_checkpoint", damage)
        try:
            turn = driver.resume(job, family, actor.state)
        except LoopFailed as error:
            return verbs.fail(job, self._node(job), "error", str(error))
        actor.state, actor.plan = turn.state, turn.plan
        return turn.events

    async def _load_inline(self, actors: Sequence[JobActor]) -> list[str | None]:
        """Read the small blobs that the jobs' states refer to. Returns what is wrong with those of each, or None."""
        wanted = {digest for actor in actors for digest in needs(actor.job, actor.state, actor.refolds)}
        try:
            found = await self._journal.blobs(list(wanted))
        except CorruptBlob as error:
            return [str(error)] if len(actors) == 1 else [(await self._load_inline([one]))[0] for one in actors]
        for actor in actors:
            actor.keep_inline(found)
        return [None] * len(actors)

    def _leave(self, job_id: str, problem: str) -> None:
        self.unrunnable[job_id] = problem
        log.warning("left in the log: %s", problem, extra={"job": job_id})

    def _node(self, job: Job) -> Node:
        return driver.node_of(job, self._registry[job.model.name])


def mismatch(pinned: ModelIdentity, here: Mapping[str, ModelIdentity], registry: Registry) -> str | None:
    """Why an engine with these models cannot run what is pinned to that one, if it cannot."""
    if pinned.name in registry.unusable:
        return str(UnusableModel(pinned.name, registry.unusable[pinned.name]))
    ours = here.get(pinned.name)
    if ours is None:
        return f"this engine has no model {pinned.name!r}"
    if ours.card != pinned.card:
        return f"the job pins card {pinned.card[:16]}, this engine has {ours.card[:16]}"
    if ours.weights != pinned.weights:
        asked = f"`engine models check {pinned.name}` says which file of a checkpoint differs"
        return f"the job pins weights {pinned.weights[:16]}, this engine has {ours.weights[:16]}; {asked}"
    return None
