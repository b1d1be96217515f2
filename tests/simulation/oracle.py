"""What must be true of a simulated world: at once, of everything that is told to anyone, and of its log at the end."""

from collections.abc import Awaitable, Callable, Sequence

from cards.family import Family
from cards.request import GenerationRequest
from cards.wire import ArtifactRef
from engine import check
from engine import events as facts
from engine.cancel import Outcome
from engine.events import CancelRequested, JobCancelled, JobEvent, JobSubmitted, StepCompleted
from engine.job import Job, State, fold
from engine.verbs import is_poison
from engine.views import Told
from store.blobs import digest_of
from store.journal import Event
from tests.simulation import reference
from tests.simulation.disk import Disk
from tests.simulation.trace import Trace

ALL = 100_000


class Oracle:
    """`problems` says in words what was not as it must be. No check waits: what it looks at is of one moment."""

    def __init__(self, disk: Disk, trace: Trace, family: Family) -> None:
        self.problems: list[str] = []
        self.events = 0
        self.kinds: set[str] = set()
        self._disk = disk
        self._trace = trace
        self._family = family
        self._of_key: dict[str, str] = {}
        self._accepted: dict[str, GenerationRequest] = {}
        self._asked_to_cancel: set[str] = set()
        self._folds: dict[str, list[Job]] = {}

    def wrong(self, problem: str) -> None:
        self._trace("WRONG", problem)
        self.problems.append(problem)

    # -- told to someone ------------------------------------------------------------------------------------------

    async def accepted(self, job: Job, request: GenerationRequest, key: str | None) -> None:
        self._trace("caller", f"{job.id} is accepted")
        self._accepted[job.id] = request
        if key is not None and self._of_key.setdefault(key, job.id) != job.id:
            self.wrong(f"key {key} stands for {self._of_key[key]} and for {job.id}")
        await self.seen(job)

    async def seen(self, job: Job) -> None:
        if job not in await self._states(job.id):
            self.wrong(f"{job.id} was shown as {job.state} at {job.place}, which the log does not have")

    async def paged(self, job_id: str, before: Sequence[Told], page: Sequence[Told]) -> None:
        """A reader that has read `before` got a page."""
        log = await self._disk.inner.read(f"job/{job_id}", limit=ALL)
        following = [event.position for event in log[len(before) : len(before) + len(page)]]
        if following != [told.position for told in page]:
            self.wrong(f"a reader of {job_id} got {[t.position for t in page]} where the log has {following}")

    async def read_to_the_end(self, job_id: str, read: Sequence[Told]) -> None:
        log = await self._disk.inner.read(f"job/{job_id}", limit=ALL)
        if [event.position for event in log] != [told.position for told in read]:
            self.wrong(f"a reader of {job_id} was told that it had ended after {len(read)} of {len(log)} events")
        if not (await self._states(job_id))[-1].terminal:
            self.wrong(f"a reader of {job_id} was told that it had ended")

    def asked_to_cancel(self, job_id: str) -> None:
        self._trace("caller", f"asks to cancel {job_id}")
        self._asked_to_cancel.add(job_id)

    async def cancelled(self, job_id: str, outcome: Outcome) -> None:
        self._trace("caller", f"cancel of {job_id}: {outcome}")
        log = [facts.decode(event) for event in await self._disk.inner.read(f"job/{job_id}", limit=ALL)]
        proof = {
            Outcome.CANCELLED: lambda: isinstance(log[-1], JobCancelled),
            Outcome.CANCELLING: lambda: any(isinstance(event, CancelRequested) for event in log),
            Outcome.ALREADY_TERMINAL: lambda: fold_all(log).terminal,
        }
        if not proof[outcome]():
            self.wrong(f"the cancel of {job_id} was answered {outcome}, which is not in the log")

    def fetched(self, job_id: str, ref: ArtifactRef, data: bytes) -> None:
        if digest_of(data) != ref.digest:
            self.wrong(f"the bytes of artifact {ref.name} of {job_id} are others")

    async def _states(self, job_id: str) -> list[Job]:
        """All that the job has been so far, durably."""
        states = self._folds.setdefault(job_id, [])
        for event in (await self._disk.inner.read(f"job/{job_id}", limit=ALL))[len(states) :]:
            states.append(fold(states[-1] if states else None, facts.decode(event)))
        return states

    # -- the log ----------------------------------------------------------------------------------------------------

    async def final(self, held_up: Callable[[str], Awaitable[str | None]]) -> None:
        """Everything has come to rest."""
        streams = await self._disk.inner.streams("job/", limit=ALL)
        for job_id in self._accepted:
            if f"job/{job_id}" not in streams:
                self.wrong(f"{job_id} was accepted and is not in the log")
        for name in streams:
            await self._check_stream(name, held_up)
        for problem in (await check.check(self._disk.inner)).problems:
            self.wrong(problem)
        log = await self._disk.inner.read_all(limit=ALL)
        positions = [event.position for event in log]
        self.events, self.kinds = len(log), {event.type for event in log}
        if positions != sorted(set(positions)):
            self.wrong("positions of the log are not in order, or used twice")

    async def _check_stream(self, name: str, held_up: Callable[[str], Awaitable[str | None]]) -> None:
        events = await self._disk.inner.read(name, limit=ALL)
        history = [facts.decode(event) for event in events]
        job = fold_all(history)
        self._check_owners(name, events)
        self._check_steps(job, history)
        self._check_ending(job, history)
        if not job.terminal and await held_up(job.id) is None:
            self.wrong(f"{job.id} is {job.state} at {job.place} and nobody says why")

    def _check_owners(self, name: str, events: Sequence[Event]) -> None:
        if [event.version for event in events] != list(range(1, len(events) + 1)):
            self.wrong(f"{name}: versions have gaps")
        order = [(event.epoch, event.version) for event in events]
        if order != sorted(order):
            self.wrong(f"{name}: events are not in the order of epoch and version")
        owners: dict[int, str] = {}
        for event in events:
            author = self._disk.authors.get((name, event.version), "nobody")
            owner = owners.setdefault(event.epoch, author)
            if author != owner:
                self.wrong(f"{name}: version {event.version} in epoch {event.epoch} of {owner} is by {author}")

    def _check_steps(self, job: Job, history: Sequence[JobEvent]) -> None:
        done = [reference.made(event) for event in history if isinstance(event, StepCompleted)]
        alone = reference.ending(_submitted(history), self._family).steps
        if done != alone[: len(done)]:
            self.wrong(f"{job.id}: its steps are not those of the same request alone")
        if job.state is State.COMPLETED and len(done) != len(alone):
            self.wrong(f"{job.id} completed after {len(done)} steps of {len(alone)}")

    def _check_ending(self, job: Job, history: Sequence[JobEvent]) -> None:
        own = reference.ending(_submitted(history), self._family).failure
        if job.state is State.COMPLETED and own is not None:
            self.wrong(f"{job.id} completed, and alone it fails with {own}")
        if job.state is State.CANCELLED and job.id not in self._asked_to_cancel:
            self.wrong(f"{job.id} is cancelled, and nobody asked for it")
        if job.failure is not None and job.failure.kind not in (own, "poisoned" if is_poison(job, 3) else own):
            self.wrong(f"{job.id} failed with {job.failure}, and alone it ends with {own}")


def fold_all(history: Sequence[JobEvent]) -> Job:
    job: Job | None = None
    for event in history:
        job = fold(job, event)
    assert job is not None, "a stream starts with JobSubmitted"
    return job


def _submitted(history: Sequence[JobEvent]) -> JobSubmitted:
    assert isinstance(history[0], JobSubmitted)
    return history[0]
