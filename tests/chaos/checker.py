"""What must be true of a log, whatever was killed while it was written."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from engine import events as facts
from engine.actor import restore
from engine.check import check, history
from engine.contents import Contents
from engine.events import (
    CancelRequested,
    JobAdmitted,
    JobCancelled,
    JobEvent,
    JobPaused,
    JobRecovered,
    JobReleased,
    JobResumed,
    JobSubmitted,
    StepCompleted,
)
from engine.job import Job, State
from engine.needs import needs
from engine.verbs import is_poison
from store import chain
from store.errors import CorruptBlob, MissingBlob
from store.journal import Event, Journal, Loaded
from tests import toy
from tests.chaos.callers import Answered
from tests.simulation import reference
from tests.simulation.oracle import fold_all

HostOf = Callable[[str], str]
"""On which host an engine or a worker of this name was."""


PROOFS: dict[tuple[str, str], type[JobEvent]] = {
    ("cancel", "cancelled"): JobCancelled,
    ("cancel", "cancelling"): CancelRequested,
    ("pause", "done"): JobPaused,
    ("resume", "done"): JobResumed,
}
"""The event that must be there once this was answered."""


class Log(Struct, frozen=True):
    """One job's, whole."""

    events: Sequence[Event]
    head: Loaded | None

    @property
    def facts(self) -> list[JobEvent]:
        return [facts.decode(event) for event in self.events]


async def read(journal: Journal) -> dict[str, Log]:
    """Of every job."""
    names = await journal.streams("job/", limit=100_000)
    return {
        name.removeprefix("job/"): Log([event async for event in history(journal, name)], await journal.load(name))
        for name in names
    }


async def problems(journal: Journal, blobs: Any, answered: Answered, host_of: HostOf) -> list[str]:
    logs = await read(journal)
    found = [*(await check(journal)).problems, *problems_of_keys(logs, answered)]
    for job, log in logs.items():
        found += (f"{job}: {problem}" for problem in problems_of(log, host_of))
    found += problems_of_answers(logs, answered)
    found += [problem async for problem in missing(logs, Contents(journal, blobs))]
    return found


def problems_of(log: Log, host_of: HostOf) -> Iterator[str]:
    """Of one job."""
    job = fold_all(log.facts)
    yield from _of_order(log)
    yield from _of_owners(log, host_of)
    yield from _of_steps(log, job)
    if not job.terminal and job.state is not State.PAUSED:
        yield f"is {job.state} at {job.place}, and all has come to rest"


def _of_order(log: Log) -> Iterator[str]:
    if [event.version for event in log.events] != list(range(1, len(log.events) + 1)):
        yield "versions have gaps"
    for of, order in (("epoch", [e.epoch for e in log.events]), ("position", [e.position for e in log.events])):
        if order != sorted(order):
            yield f"events are not in the order of {of}"
    if broken := chain.broken(log.events, log.head):
        yield broken


def _of_owners(log: Log, host_of: HostOf) -> Iterator[str]:
    """What one epoch has is by one engine, and its workers."""
    owners: dict[int, str] = {}
    for event, fact in zip(log.events, log.facts, strict=True):
        if isinstance(fact, JobAdmitted | JobRecovered | JobReleased):
            if owners.setdefault(event.epoch, fact.engine) != fact.engine:
                yield f"epoch {event.epoch} is {owners[event.epoch]}'s and {fact.engine}'s"
        elif isinstance(fact, StepCompleted):
            owner = owners.get(event.epoch)
            if owner is None or host_of(owner) != host_of(fact.worker):
                yield f"version {event.version} in epoch {event.epoch} of {owner} has a step of {fact.worker}"


def _of_steps(log: Log, job: Job) -> Iterator[str]:
    steps = [fact for fact in log.facts if isinstance(fact, StepCompleted)]
    if len({(step.node, step.step) for step in steps}) != len(steps):
        yield "a step is there twice"
    submitted = log.facts[0]
    assert isinstance(submitted, JobSubmitted)
    alone = reference.ending(awake(submitted), toy.FAMILY)
    done = [reference.made(step) for step in steps]
    if done != alone.steps[: len(done)]:
        yield "its steps are not those of the same request alone"
    if job.state is State.COMPLETED and (len(done) != len(alone.steps) or alone.failure):
        yield f"completed after {len(done)} steps, and alone it makes {len(alone.steps)} and ends with {alone.failure}"
    poisoned = ("poisoned",) if is_poison(job, 3) else ()
    if job.failure is not None and job.failure.kind not in (alone.failure, *poisoned):
        yield f"failed with {job.failure}, and alone it ends with {alone.failure}"


def awake(submitted: JobSubmitted) -> JobSubmitted:
    """The same request without its sleep, which changes no bit."""
    words = [word for word in submitted.request.prompt.split() if not word.startswith("sleep=")]
    return replace(submitted, request=replace(submitted.request, prompt=" ".join(words)))


def problems_of_keys(logs: Mapping[str, Log], answered: Answered) -> Iterator[str]:
    """One job a key, which is what was ordered, and no others."""
    for key, order in answered.orders.items():
        job = answered.jobs.get(key)
        if job is None or job not in logs:
            yield f"key {key} stands for {job}, which is not in the log"
            continue
        submitted = logs[job].facts[0]
        assert isinstance(submitted, JobSubmitted)
        if any(getattr(submitted.request, name) != value for name, value in order.items()):
            yield f"{job} is not what was ordered with {key}"
    for job in logs.keys() - set(answered.jobs.values()):
        yield f"{job} is a job that nobody was told of"


def problems_of_answers(logs: Mapping[str, Log], answered: Answered) -> Iterator[str]:
    for job, read in answered.read.items():
        written = [(event.position, event.version, event.type) for event in logs[job].events]
        if read != written[: len(read)] or (job in answered.ended and len(read) != len(written)):
            yield f"{job}: a reader got {len(read)} events that are not those of the log, which has {len(written)}"
    for job, verb, outcome in answered.told:
        if not _proven(logs[job], verb, outcome):
            yield f"{job}: {verb} was answered {outcome}, which is not in the log"
    for job, log in logs.items():
        job_is = fold_all(log.facts).state
        for state, verb in ((State.CANCELLED, "cancel"), (State.PAUSED, "pause")):
            if job_is is state and (job, verb) not in answered.asked:
                yield f"{job} is {state}, and nobody asked for it"


def _proven(log: Log, verb: str, outcome: str) -> bool:
    """Whether the log has what was answered."""
    if (verb, outcome) not in PROOFS:
        return outcome != "already_terminal" or fold_all(log.facts).terminal
    return any(isinstance(fact, PROOFS[verb, outcome]) for fact in log.facts)


async def missing(logs: Mapping[str, Log], contents: Contents) -> AsyncIterator[str]:
    """Nothing was swept, so that all that anyone ever named must be there."""
    named: dict[str, str] = {}
    for job, log in logs.items():
        for digest in _names(log):
            named.setdefault(digest, job)
    for digest, job in named.items():
        try:
            await contents.get(digest)
        except (MissingBlob, CorruptBlob) as error:
            yield f"{job}: {error}"


def _names(log: Log) -> Iterator[str]:
    """What its steps made, and what its next step would read."""
    for fact in log.facts:
        if isinstance(fact, StepCompleted):
            yield from (ref.digest for ref in (*fact.tensors.values(), *fact.artifacts))
    if log.head is not None:
        saved = restore(log.head)
        yield from needs(saved.job, saved.state, saved.refolds)


def takeovers(logs: Mapping[str, Log]) -> int:
    return sum(isinstance(fact, JobRecovered) for log in logs.values() for fact in log.facts)


def taken_after(logs: Mapping[str, Log], engine_pid: int, at: float) -> float | None:
    """How long after `at` all jobs that this engine had then were another's; None if it had none."""
    waits = [wait for log in logs.values() if (wait := _wait(log, engine_pid, at)) is not None]
    return max(waits, default=None)


def _wait(log: Log, engine_pid: int, at: float) -> float | None:
    owner: str | None = None
    for event, fact in zip(log.events, log.facts, strict=True):
        takes = isinstance(fact, JobAdmitted | JobRecovered)
        if event.at <= at:
            owner = fact.engine if takes else owner
            ended = isinstance(fact, facts.JobCompleted | facts.JobFailed | JobCancelled | JobPaused)
            owner = None if ended else owner
        elif owner is None or pid_of(owner) != engine_pid:
            return None
        elif takes and fact.engine != owner:
            return event.at - at
    return None


def pid_of(engine: str) -> int:
    """Names of engines end with their process and a few digits of chance."""
    return int(engine.split("-")[-2])
