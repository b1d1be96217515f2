"""What the outside may ask of an engine. Everything it answers is durable."""

import hashlib
import random
from collections.abc import AsyncGenerator, Callable

import anyio
import msgspec
from msgspec import Struct

from cards import registry
from cards.card import ModelCard
from cards.request import GenerationRequest, resolve
from cards.wire import ArtifactRef, TensorRef
from engine import events as facts
from engine import statistics
from engine.actor import replay, restore, stream, submission
from engine.cancel import Outcome
from engine.clock import Clock
from engine.contents import BlobReader, Contents
from engine.engine import Engine
from engine.errors import ArtifactLost, ArtifactNotFound, Draining, JobNotFound, KeyReused, StoreTrouble
from engine.events import JobEvent, JobSubmitted, NoticeGiven, StepCompleted
from engine.job import Job
from engine.statistics import EngineStatistics, Readiness
from store.errors import CorruptBlob, KeyTaken, MissingBlob, StoreError
from store.journal import ALL_JOBS, Event, IdempotencyKey, JobFilter, JobRow, Journal


class Told(Struct, frozen=True):
    """An event as people see it. `position` is its place in the log: what an SSE reader continues after."""

    position: int
    version: int
    at: float
    type: str
    event: JobEvent


class StepTensors(Struct, frozen=True):
    """What one completed step left, by content."""

    loop: str
    step: int
    tensors: dict[str, TensorRef]


class Client:
    """`ids` names new jobs, `chance` draws the seeds that callers leave out."""

    def __init__(
        self,
        engine: Engine,
        journal: Journal,
        blobs: BlobReader,
        clock: Clock,
        *,
        ids: Callable[[], str],
        chance: random.Random,
        stall_s: float = 120.0,
    ) -> None:
        self._engine = engine
        self._journal = journal
        self._contents = Contents(journal, blobs)
        self._clock = clock
        self._ids = ids
        self._chance = chance
        self._stall_s = stall_s

    # -- jobs ---------------------------------------------------------------------------------------------------

    async def submit(self, request: GenerationRequest, key: str | None = None) -> Job:
        """Accept a job: once this returns it survives anything. The same key and request give the same job.

        Raises UnknownModel, InvalidRequest, KeyReused, Draining, StoreTrouble.
        """
        if self._engine.draining:
            raise Draining
        family = registry.find(self._engine.registry, request.model)
        resolved = resolve(request, family.card, self._chance)
        now = self._clock.now()
        submitted = JobSubmitted(
            job=self._ids(), request=resolved, model=self._engine.identities[family.card.name], submitted_at=now
        )
        notices = [NoticeGiven(code=n.code, field=n.field, message=n.message) for n in family.notices(resolved)]
        claim = IdempotencyKey(key, _fingerprint(request)) if key is not None else None
        try:
            await self._journal.append(submission(submitted, notices, now, claim))
        except KeyTaken as taken:
            return await self._same_job(taken, request)
        except StoreError as error:
            self._engine.ledger.trouble = str(error)
            raise StoreTrouble(str(error)) from error
        self._engine.look_for_work()
        return replay([submitted, *notices])

    async def cancel(self, job_id: str, reason: str = "") -> Outcome:
        """Raises JobNotFound, StoreTrouble."""
        return await self._engine.canceller.cancel(job_id, reason)

    async def job(self, job_id: str) -> Job:
        """Raises JobNotFound, StoreTrouble."""
        if (actor := self._engine.ledger.actors.get(job_id)) is not None:
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
        return [_told(event) for event in events]

    async def watch(
        self, job_id: str, *, after: int = 0, heartbeat_s: float = 10.0
    ) -> AsyncGenerator[list[Told], None]:
        """Every event after a position, as it becomes durable, until the job's last; an empty list is a heartbeat.

        Raises JobNotFound, StoreTrouble.
        """
        with self._engine.hub.listen(job_id) as news:
            while True:
                news.clear()
                ended = (await self.job(job_id)).terminal  # asked first: an end between the two would go unread
                if told := await self.events(job_id, after=after):
                    after = told[-1].position
                    yield told
                elif ended:
                    return
                else:
                    with anyio.move_on_after(heartbeat_s) as scope:
                        await news.wait()
                    if scope.cancelled_caught:
                        yield []

    async def checkpoints(self, job_id: str) -> list[StepTensors]:
        """Every step's tensors by digest, whole history. Raises JobNotFound, StoreTrouble."""
        steps: list[StepTensors] = []
        after = 0
        while told := await self.events(job_id, after=after):
            after = told[-1].position
            steps += [
                StepTensors(t.event.node, t.event.step, t.event.tensors)
                for t in told
                if isinstance(t.event, StepCompleted)
            ]
        return steps

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

    def models(self) -> list[ModelCard]:
        return [family.card for family in self._engine.registry.values()]

    def held_up(self, job_id: str) -> str | None:
        """Why this engine cannot go on with an open job, if it cannot."""
        return self._engine.reconciler.unrunnable.get(job_id)

    def servable(self, model: str) -> bool:
        """Whether a worker that runs this model is there now."""
        return statistics.servable(self._engine, model)

    def readiness(self) -> Readiness:
        return statistics.readiness(self._engine, self._clock.monotonic(), self._stall_s)

    def statistics(self) -> EngineStatistics:
        return statistics.statistics(self._engine)

    async def _same_job(self, taken: KeyTaken, request: GenerationRequest) -> Job:
        job_id = taken.stream.removeprefix("job/")
        if taken.fingerprint != _fingerprint(request):
            raise KeyReused(taken.key, job_id) from taken
        return await self.job(job_id)


def _told(event: Event) -> Told:
    return Told(event.position, event.version, event.at, event.type, facts.decode(event))


def _fingerprint(request: GenerationRequest) -> str:
    return hashlib.sha256(msgspec.json.encode(request, order="deterministic")).hexdigest()
