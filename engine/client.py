"""What the outside may ask of an engine. Everything it answers is durable."""

import hashlib
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio.to_thread
import msgspec
from msgspec.structs import replace

from cards import registry
from cards.card import ModelCard
from cards.given import Given
from cards.request import GenerationRequest, RequestChanges
from cards.wire import ArtifactRef, CacheUse, Sleep, Wake
from engine import bundle, course, fork, statistics, verbs, views
from engine.actor import Saved, new_stream, replay, restore, stream
from engine.cancel import Outcome
from engine.capacity import Capacity, capacity
from engine.clock import Clock
from engine.collect import Collected, Retention, collect
from engine.components import meant
from engine.contents import Contents
from engine.desk import Desk
from engine.engine import Engine
from engine.errors import (
    ArtifactLost,
    ArtifactNotFound,
    Draining,
    JobNotFound,
    KeyReused,
    NoSuchPlace,
    StoreTrouble,
    WorkerNotFound,
)
from engine.events import JobEvent, JobForked, JobSubmitted
from engine.intake import Aside, Intake, in_a_thread
from engine.job import Job
from engine.past import Past
from engine.statistics import EngineStatistics, Readiness, WorkerSeen
from engine.views import StepTensors, Told
from store.blobs import Blobs, tenants
from store.errors import CorruptBlob, KeyTaken, MissingBlob, StoreError, StreamConflict
from store.journal import ALL_JOBS, Blob, IdempotencyKey, JobFilter, JobRow, Journal

AS_IT_IS = RequestChanges()

NOTHING_GIVEN: Mapping[str, Given] = {}

KEEP_ALL_JOBS = Retention()


class Client:
    """`ids` names new jobs, `chance` draws the seeds that callers leave out, `aside` is where requests are checked."""

    def __init__(
        self,
        engine: Engine,
        journal: Journal,
        blobs: Blobs,
        clock: Clock,
        *,
        ids: Callable[[], str],
        chance: random.Random,
        stall_s: float = 120.0,
        retention: Retention = KEEP_ALL_JOBS,
        aside: Aside = in_a_thread,
    ) -> None:
        self._engine = engine
        self._journal = journal
        self._blobs = blobs
        self._contents = Contents(journal, blobs)
        self._past = Past(journal, self._contents, engine.registry, engine.identities)
        self.verbs = Desk(engine, journal, self._past, clock)
        """What people do to jobs: pause, resume, retry, terminate, quarantine, lift, rewind, migrate,
        pin, unpin, move_away."""
        self._clock = clock
        self._ids = ids
        self._aside = aside
        self._intake = Intake(self._contents, blobs, engine.identities, find=self.job, chance=chance, aside=aside)
        self._stall_s = stall_s
        self._retention = retention

    # -- jobs ---------------------------------------------------------------------------------------------------

    async def submit(
        self, request: GenerationRequest, key: str | None = None, given: Mapping[str, Given] = NOTHING_GIVEN
    ) -> Job:
        """Accept a job: once this returns it survives anything. The same key and request give the same job.

        `given` is what comes with the request, by the names of the card's inputs.

        Raises UnknownModel, UnusableModel, InvalidRequest, KeyReused, Draining, StoreTrouble.
        """
        if self._engine.draining:
            raise Draining
        family = registry.find(self._engine.registry, request.model)
        checked = await self._intake.check(request, family, given)
        await self._engine.accounts.check(checked.request, family, self._engine.identities[family.card.name])
        submitted = JobSubmitted(
            job=self._ids(),
            request=checked.request,
            model=self._engine.identities[family.card.name],
            submitted_at=self._clock.now(),
            inputs=checked.inputs,
        )
        events: list[JobEvent] = [submitted, *checked.notices]
        asked = (request, submitted.inputs) if given else request
        return await self._accept(events, Saved(replay(events), None), key, asked, await self._intake.store(given))

    async def fork(self, job_id: str, at_step: int, changes: RequestChanges = AS_IT_IS, key: str | None = None) -> Job:
        """A new job that shares a job's first `at_step` steps and goes on from there with what `changes` sets.

        Raises JobNotFound, NoSuchStep, TensorsGone, InvalidRequest, Unrunnable, LoopFailed, KeyReused, Draining,
        HistoryError, StoreTrouble.
        """
        if self._engine.draining:
            raise Draining
        log = await self._past.read(job_id)
        walked = await self._past.at(log, at_step, "at_step")
        family = self._past.family(log.job)
        changed = await self._aside(partial(fork.change, walked, changes, family))
        events = fork.log(
            log.events,
            replace(log.submitted, job=self._ids(), submitted_at=self._clock.now()),
            JobForked(parent=job_id, at_step=at_step, changes=changes),
            changed,
            ended=fork.ended(walked.job, family),
            engine=self._engine.settings.name,
        )
        forked = course.follow(events, family)
        return await self._accept(
            events, Saved(forked.job, forked.state, forked.refolds), key, (job_id, at_step, changes)
        )

    async def take_in(self, file: Path) -> Job:
        """A job out of a bundle: it goes on here. Raises BadBundle, JobExists, Unrunnable, Draining, StoreTrouble."""
        if self._engine.draining:
            raise Draining
        try:
            await anyio.to_thread.run_sync(tenants.move_in, self._blobs, await self._journal.identity())
            job = await bundle.take_in(self._journal, self._blobs, self._engine.registry, file, at=self._clock.now())
        except StoreError as error:
            raise StoreTrouble(str(error)) from error
        self._engine.look_for_work()
        return job

    async def collect(self, *, dry_run: bool, take_over: bool = False) -> Collected:
        """Forget what is old and what nothing names. Raises BlobsShared, CannotCollect, StoreTrouble."""
        registry, now = self._engine.registry, self._clock.now()
        try:
            return await collect(
                self._journal,
                self._blobs,
                registry,
                self._retention,
                now=now,
                dry_run=dry_run,
                take_over=take_over,
            )
        except StoreError as error:
            raise StoreTrouble(str(error)) from error

    async def cancel(self, job_id: str, reason: str = "") -> Outcome:
        """Raises JobNotFound, Draining, StoreTrouble."""
        if self._engine.draining:
            raise Draining
        return await self.verbs.cancel(job_id, reason)

    async def purge(self, job_id: str) -> None:
        """Forget a job that has ended, and all of its log. Raises JobNotFound, NotAllowed, HistoryError, StoreTrouble.

        One that somebody takes up again meanwhile is there to stay; one whose purge was cut off is purged to its end.
        """
        name = stream(job_id)
        try:
            while (loaded := await self._journal.load(name)) is not None:
                verbs.check("purge", restore(loaded).job)
                with suppress(StreamConflict):
                    await self._journal.purge(name, expected=loaded.version, epoch=loaded.epoch)
                    return
            if name not in await self._journal.purging():
                raise JobNotFound(job_id)
            await self._journal.purge(name, expected=0, epoch=0)
        except StoreError as error:
            raise StoreTrouble(str(error)) from error

    async def job(self, job_id: str) -> Job:
        """Raises JobNotFound, StoreTrouble."""
        actor = self._engine.ledger.actors.get(job_id)
        if actor is not None and not self._journal.shared:  # else another engine may have it by now
            return actor.durable
        try:
            loaded = await self._journal.load(stream(job_id))
        except StoreError as error:
            raise StoreTrouble(str(error)) from error
        if loaded is None:
            raise JobNotFound(job_id)
        return restore(loaded).job

    async def jobs(self, where: JobFilter = ALL_JOBS, *, after: str | None = None, limit: int = 100) -> list[JobRow]:
        """Newest first. Raises StoreTrouble."""
        try:
            return await self._journal.jobs(where, after=after, limit=limit)
        except StoreError as error:
            raise StoreTrouble(str(error)) from error

    # -- what happened to them ----------------------------------------------------------------------------------

    async def events(self, job_id: str, *, after: int = 0, limit: int = 1000) -> list[Told]:
        """Raises JobNotFound, StoreTrouble."""
        try:
            events = await self._journal.read(stream(job_id), after=after, limit=limit)
        except StoreError as error:
            raise StoreTrouble(str(error)) from error
        if not events:
            await self.job(job_id)
        return [views.told(event) for event in events]

    async def watch(
        self, job_id: str, *, after: int = 0, heartbeat_s: float = 10.0
    ) -> AsyncGenerator[list[Told], None]:
        """Every event after a position, as it becomes durable, until the job's last; an empty list is a heartbeat.

        An engine that stops ends it sooner: whoever finds no end in it goes on at the next engine.

        Raises JobNotFound, StoreTrouble.
        """
        with self._engine.hub.listen(job_id) as news:
            while True:
                news.clear()
                ended = (await self.job(job_id)).terminal  # asked first: an end between the two would go unread
                if told := await self.events(job_id, after=after):
                    after = told[-1].position
                    yield told
                elif ended or self._engine.hub.closed:
                    return
                else:
                    with anyio.move_on_after(heartbeat_s) as scope:
                        await news.wait()
                    if scope.cancelled_caught:
                        yield []

    async def checkpoints(self, job_id: str) -> list[StepTensors]:
        """Every step's tensors by digest, as the log now stands: what was rewound is not in it.

        Raises JobNotFound, HistoryError, StoreTrouble.
        """
        log = await self._past.read(job_id)
        return [StepTensors(step.node, step.step, step.tensors) for step in log.steps]

    async def artifact(self, job_id: str, name: str) -> tuple[ArtifactRef, bytes]:
        """Raises JobNotFound, ArtifactNotFound, ArtifactLost, StoreTrouble."""
        job = await self.job(job_id)
        if name not in job.artifacts:
            raise ArtifactNotFound(job_id, name, tuple(sorted(job.artifacts)))
        ref = job.artifacts[name]
        try:
            return ref, await self._contents.get(ref.digest)
        except (CorruptBlob, MissingBlob) as error:
            raise ArtifactLost(job_id, name, str(error)) from error
        except StoreError as error:
            raise StoreTrouble(str(error)) from error

    # -- the engine itself --------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Under which the engine holds its jobs."""
        return self._engine.settings.name

    def models(self) -> list[ModelCard]:
        return [family.card for family in self._engine.registry.values()]

    def unusable(self) -> Mapping[str, str]:
        """Registered models that this engine serves no jobs of, and why."""
        return self._engine.registry.unusable

    def held_up(self, job: Job) -> str | None:
        """Why this engine cannot go on with an open job now, if it cannot."""
        unrunnable = self._engine.reconciler.unrunnable.get(job.id)
        if unrunnable is not None or not job.open or job.model.name not in self._engine.registry:
            return unrunnable
        there = self._engine.fleet.serving(job.model, job.pool)
        if job.pool and not there:
            return f"no worker of pool {job.pool!r} takes work for {job.model.name!r} now"
        if there and not self._engine.served.next_of(job):
            return f"no worker serves as {self._engine.served.role(job)} for {job.model.name!r} now"
        return self._engine.dispatcher.why(job.id)

    async def destination(self, name: str) -> dict[str, str]:
        """What `migrate` takes, for `pool:NAME`, `engine:NAME` or a name that is one of either.

        Where other engines may have the job, a name that is nobody's here may be that of a pool there.

        Raises NoSuchPlace, StoreTrouble.
        """
        kind, _, rest = name.partition(":")
        if kind in ("pool", "engine") and rest:
            return {kind: rest}
        pools = {seat.hello.pool for seat in self._engine.fleet.seats.values()}
        try:
            engines = await self._engine.peers.names()
        except StoreError as error:
            raise StoreTrouble(str(error)) from error
        if name in pools or name in engines:
            return {"pool" if name in pools else "engine": name}
        if kind == name and self._journal.shared and engines != [self.name]:
            return {"pool": name}
        there = ", ".join([f"pool:{one}" for one in sorted(pools)] + [f"engine:{one}" for one in sorted(engines)])
        raise NoSuchPlace(f"no pool and no engine is named {name!r}; there are: {there}")

    def workers(self) -> list[WorkerSeen]:
        return statistics.workers(self._engine, self._clock.monotonic())

    async def drain_worker(self, worker: str) -> WorkerSeen:
        """It gets no more work; its jobs go on elsewhere after the step they are in, then it leaves.

        Raises WorkerNotFound.
        """
        self._check_worker(worker)
        await self._engine.drain_worker(worker)
        return next(seen for seen in self.workers() if seen.id == worker)

    async def fence_worker(self, worker: str, reason: str = "") -> None:
        """It is given up at once, and what it says from now on decides nothing. Raises WorkerNotFound."""
        self._check_worker(worker)
        await self._engine.give_up(worker, reason or "fenced by an operator", blame=False)

    async def sleep_worker(self, worker: str, components: Sequence[str] = (), models: Sequence[str] = ()) -> list[str]:
        """It unloads these components, all that are not named otherwise; a step that needs one loads it again.

        Returns them as `<model>/<component>`. Raises WorkerNotFound, NoSuchComponent.
        """
        names = self._meant(worker, components, models)
        await self._engine.tell_worker(worker, Sleep(tuple(names)))
        return names

    async def wake_worker(self, worker: str, components: Sequence[str] = (), models: Sequence[str] = ()) -> list[str]:
        """It loads them, as far as it has room. Raises as `sleep_worker`."""
        names = self._meant(worker, components, models)
        await self._engine.tell_worker(worker, Wake(tuple(names)))
        return names

    def _meant(self, worker: str, components: Sequence[str], models: Sequence[str]) -> list[str]:
        self._check_worker(worker)
        return meant(self._engine.fleet.seats[worker].hello, self._engine.registry, components, models)

    def _check_worker(self, worker: str) -> None:
        if worker not in self._engine.fleet.seats:
            raise WorkerNotFound(worker, sorted(self._engine.fleet.seats))

    def servable(self, model: str) -> bool:
        """Whether a worker that runs this model is there now."""
        return statistics.servable(self._engine, model)

    def readiness(self) -> Readiness:
        return statistics.readiness(self._engine, self._clock.monotonic(), self._stall_s)

    def capacity(self) -> Capacity:
        return capacity(self._engine, self._clock.monotonic())

    async def open_jobs(self) -> int:
        """How many the log has, whoever drives them: queued and running. Raises StoreTrouble."""
        try:
            return await self._journal.open_jobs()
        except StoreError as error:
            raise StoreTrouble(str(error)) from error

    def caches(self) -> Mapping[str, CacheUse]:
        """What all workers keep, by class."""
        return statistics.caches(self._engine)

    def statistics(self) -> EngineStatistics:
        return statistics.statistics(self._engine)

    async def _accept(
        self, events: Sequence[JobEvent], saved: Saved, key: str | None, asked: object, blobs: tuple[Blob, ...] = ()
    ) -> Job:
        """Write a new job's log. A key that was used for the same before gives that job."""
        claim = IdempotencyKey(key, _fingerprint(asked)) if key is not None else None
        try:
            await self._journal.append(new_stream(events, saved, saved.job.submitted_at, claim, blobs))
        except KeyTaken as taken:
            job_id = taken.stream.removeprefix("job/")
            if taken.fingerprint != _fingerprint(asked):
                raise KeyReused(taken.key, job_id) from taken
            return await self.job(job_id)
        except StoreError as error:
            self._engine.ledger.trouble = str(error)
            raise StoreTrouble(str(error)) from error
        self._engine.look_for_work()
        return saved.job


def _fingerprint(asked: object) -> str:
    return hashlib.sha256(msgspec.json.encode(asked, order="deterministic")).hexdigest()
