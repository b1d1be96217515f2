"""`engine-admin replay verify`: a job's log executed again in this process, on a device of its own."""

from collections.abc import Callable
from pathlib import Path

import anyio.to_thread

from cards import registry
from cards.errors import UnknownModel, UnusableModel
from cards.family import Family
from cards.fingerprint import ran_on_cpu
from cards.wire import StepResult, WorkUnit
from engine import events as facts
from engine.actor import replay
from engine.audit import sound_log
from engine.bundle import take_in
from engine.contents import Contents
from engine.course import course
from engine.errors import NoSuchStep, Unrunnable
from engine.events import JobEvent, StepCompleted
from engine.job import Job
from engine.replay import Difference, Verdict, diff, verify
from ops.blobs import WorkerBlobs
from ops.models import families_of
from ops.settings import Settings
from store.blobs import Blobs, MemoryBlobs, open_blobs
from store.journal import Journal
from store.memory import MemoryJournal
from store.open import open_journal
from workers.devices import device_of
from workers.execute import Executor
from workers.loaded import load_models

Progress = Callable[[str, int], None]


async def verify_job(
    settings: Settings, job_id: str, progress: Progress, *, from_step: int = 0
) -> tuple[Verdict, list[str]]:
    """The verdict, and what differs between then and now that may explain one.

    On the CPU if it ran there, and else where the settings say.
    Raises JobNotFound, HistoryError, Unrunnable, NoDevice.
    """
    async with open_journal(settings.store_url, writable=False) as journal:
        return await _verify(settings, journal, open_blobs(settings.blobs_url), job_id, progress, from_step)


async def verify_bundle(
    settings: Settings, file: Path, progress: Progress, *, from_step: int = 0
) -> tuple[Verdict, list[str]]:
    """The same of an exported job, in no store. Raises BadBundle, Unrunnable."""
    journal, blobs = MemoryJournal(), MemoryBlobs()
    job = await take_in(journal, blobs, families_of(settings), file, at=0.0)
    return await _verify(settings, journal, blobs, job.id, progress, from_step)


async def _verify(
    settings: Settings, journal: Journal, blobs: Blobs, job_id: str, progress: Progress, from_step: int
) -> tuple[Verdict, list[str]]:
    log = await _log(journal, job_id)
    job = replay(log)
    steps = sum(isinstance(event, StepCompleted) for event in course(log))
    if from_step > steps:
        raise NoSuchStep(job_id, "from_step", from_step, steps)
    families = _needed(settings, job)
    family = families[job.model.name]
    device = "cpu" if ran_on_cpu(job.fingerprint or "") else device_of(settings.device)
    executor = Executor(load_models(families, device), WorkerBlobs(MemoryBlobs()), stores=False, device=device)

    async def execute(unit: WorkUnit, frames: list[bytes]) -> StepResult:
        return (await anyio.to_thread.run_sync(executor.run, unit, frames)).result

    verdict = await verify(log, family, execute, Contents(journal, blobs), progress, from_step=from_step)
    return verdict, _changes(job, family, device)


def _needed(settings: Settings, job: Job) -> registry.Families:
    """Raises Unrunnable."""
    try:
        return registry.needed(families_of(settings), job.model.name)
    except (UnknownModel, UnusableModel) as error:
        raise Unrunnable(job.id, str(error)) from error


async def diff_jobs(settings: Settings, ours: str, theirs: str) -> Difference | None:
    """Raises JobNotFound, HistoryError."""
    async with open_journal(settings.store_url, writable=False) as journal:
        return diff(await _log(journal, ours), await _log(journal, theirs))


async def _log(journal: Journal, job_id: str) -> list[JobEvent]:
    return [facts.decode(event) for event in await sound_log(journal, job_id)]


def _changes(job: Job, family: Family, device: str) -> list[str]:
    from cards.fingerprint import numerics

    now = registry.identity(family)
    then_and_now = {
        "card": (job.model.card[:16], now.card[:16]),
        "weights": (job.model.weights[:16], now.weights[:16]),
        "numerics": (job.fingerprint, numerics(device)),
    }
    return [
        f"{what}: the job ran with {then}, here it is {here}"
        for what, (then, here) in then_and_now.items()
        if then not in (None, here)
    ]
