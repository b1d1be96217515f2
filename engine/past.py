"""A job's past: its whole log, and the job as it was after any of its steps, if the tensors of that step are there."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from cards.family import Family
from cards.registry import Registry
from cards.wire import ModelIdentity
from engine import course
from engine import events as facts
from engine.actor import replay, stream
from engine.check import history
from engine.contents import Contents
from engine.course import Walked
from engine.errors import JobNotFound, NoSuchStep, StoreTrouble, TensorsGone, Unrunnable
from engine.events import JobEvent, JobSubmitted, StepCompleted
from engine.job import Job
from engine.needs import needs
from engine.reconcile import mismatch
from store.errors import StoreError
from store.journal import Journal


class Log(Struct, frozen=True):
    """All that has happened to a job, up to `version`, which was written under `epoch`."""

    events: tuple[JobEvent, ...]
    job: Job
    version: int
    epoch: int

    @property
    def submitted(self) -> JobSubmitted:
        first = self.events[0]
        assert isinstance(first, JobSubmitted), "a stream starts with JobSubmitted"
        return first

    @property
    def steps(self) -> list[StepCompleted]:
        """Those that count today."""
        return course.steps(course.course(self.events))


class Past:
    def __init__(
        self, journal: Journal, contents: Contents, registry: Registry, identities: Mapping[str, ModelIdentity]
    ) -> None:
        self._journal = journal
        self._contents = contents
        self._registry = registry
        self._identities = identities

    async def read(self, job_id: str) -> Log:
        """Raises JobNotFound, HistoryError, StoreTrouble."""
        try:
            found = [event async for event in history(self._journal, stream(job_id))]
        except StoreError as error:
            raise StoreTrouble(str(error)) from error
        if not found:
            raise JobNotFound(job_id)
        events = tuple(map(facts.decode, found))
        return Log(events, replay(events), found[-1].version, found[-1].epoch)

    def family(self, job: Job) -> Family:
        """The family that the job was made with. Raises Unrunnable."""
        if problem := mismatch(job.model, self._identities, self._registry):
            raise Unrunnable(job.id, problem)
        return self._registry[job.model.name]

    async def at(self, log: Log, step: int, field: str) -> Walked:
        """The job after its first `step` steps; `field` is what asks for them.

        Raises NoSuchStep, TensorsGone, Unrunnable, LoopFailed, StoreTrouble.
        """
        there = len(log.steps)
        if not 0 <= step <= there:
            raise NoSuchStep(log.job.id, field, step, there)
        walked = course.stand(log.events, self.family(log.job), step)
        if not await self._stored(walked):
            raise TensorsGone(log.job.id, step, await self._nearest(log, step))
        return walked

    async def last(self, log: Log) -> Walked:
        """The job after its last step. Raises as `at`."""
        return await self.at(log, len(log.steps), "step")

    async def _nearest(self, log: Log, step: int) -> Sequence[int]:
        """The last step before and the first one after whose tensors are there. None are needed before the first."""
        walked = list(course.walk(log.events, self.family(log.job)))
        around = (range(step - 1, -1, -1), range(step + 1, len(walked)))
        found = [await self._first_stored(walked, steps) for steps in around]
        return [n for n in found if n is not None]

    async def _first_stored(self, walked: Sequence[Walked], steps: Iterable[int]) -> int | None:
        for n in steps:
            if await self._stored(walked[n]):
                return n
        return None

    async def _stored(self, walked: Walked) -> bool:
        try:
            needed = needs(walked.job, walked.state, walked.refolds)
            return not await self._contents.keep([*needed, *walked.job.lasting])
        except StoreError as error:
            raise StoreTrouble(str(error)) from error
