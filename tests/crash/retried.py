"""Work that engines and people do to jobs: broken off anywhere and done again, it ends as if nothing had been.

A process runs a real engine over a store on disk, does the work, and is killed on the way. Another engine then finds
its lease run out and does the same work over the same store. Nothing that a caller sees of the jobs may be another than
it is after the work was done once, over a journal in memory.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import anyio

from engine.check import check as problems_of_jobs
from engine.errors import StoreTrouble
from engine.events import StepCompleted
from store.blobs import MemoryBlobs
from store.blobs.open import open_blobs
from store.errors import StoreUnavailable
from store.journal import Journal
from store.open import open_journal
from tests.crash.checker import opened, problems_after, short
from tests.crash.forked import result_of
from tests.crash.scenario import Place, Scenario, Tell
from tests.sim import Running, World, digests

FIRST, KILLED, NEXT = "first", "killed", "next"
"""The engine that made what is there before, the one that is killed, and the one that comes after it."""

FIRST_JOB = 100
"""The number of the first job that work may add to those that are there."""

TRIES = 5

Before: TypeAlias = Callable[[World], Awaitable[None]]
"""Makes what is there before."""

Work: TypeAlias = Callable[[Running, Path, Tell], Awaitable[str]]
"""Is done on an engine that has no worker yet, with a folder for files. Returns what else is to be the same."""


async def no_jobs(world: World) -> None:
    """For work that needs none."""


def retried(work: Work, before: Before = no_jobs) -> Scenario:
    import torch  # here, because it takes long and the other scenarios do without

    torch.set_num_threads(1)  # the threads of a pool do not come along when a process is forked
    unbroken = result_of(lambda: anyio.run(_unbroken, work, before), str)

    async def prepare(place: Place) -> None:
        async with open_journal(place.journal) as journal:
            await before(_world(journal, place))
            await journal.end_lease(FIRST)

    async def live(place: Place, tell: Tell) -> None:
        with suppress(StoreUnavailable):  # while it opens: an engine does not start then
            async with open_journal(place.journal) as journal:
                await _done(_world(journal, place), KILLED, work, place.folder, tell)

    async def check(place: Place, told: Sequence[str]) -> list[str]:
        async with opened(place) as journal:
            log = {f"event {event.position} {event.type}" for event in await journal.read_all()}
            problems = [f"lost {line}" for line in told if line not in log]
            await journal.end_lease(KILLED)
            ending = await _done(_world(journal, place), NEXT, work, place.folder, lambda line: None)
            if ending != unbroken:
                problems.append(f"ended as {short(ending)}, not as {short(unbroken)}")
            problems += (await problems_of_jobs(journal)).problems
        return problems + await problems_after(place)

    return Scenario(live, check, prepare, steady=False)


@asynccontextmanager
async def engine(world: World, name: str) -> AsyncIterator[Running]:
    """One that may write, and has no worker."""
    async with world.engine(workers=0, name=name) as running:
        await running.until(lambda: running.engine.lease.held)
        yield running


async def followed(running: Running, job_id: str, tell: Tell) -> None:
    """To its end, with a worker, telling of every event that a caller is told of."""
    if not running.workers:
        running.add_worker()
    async for events in running.client.watch(job_id):
        for told in events:
            tell(f"event {told.position} {told.type}")


async def _unbroken(work: Work, before: Before) -> str:
    world = World()
    world.blobs = MemoryBlobs(time.time)
    await before(world)
    with TemporaryDirectory() as folder:
        return await _done(world, KILLED, work, Path(folder), lambda line: None)


async def _done(world: World, name: str, work: Work, folder: Path, tell: Tell) -> str:
    """Do it, again if the store is away meanwhile, and see how that ended."""
    world.number_jobs_from(FIRST_JOB)
    async with engine(world, name) as running:
        for tries in range(TRIES):
            try:
                found = await work(running, folder, tell)
                return repr((found, [await _ending(running, row.id) for row in await running.client.jobs()]))
            except (StoreTrouble, StoreUnavailable):
                if tries == TRIES - 1:
                    raise
        raise AssertionError("it has been tried")


def _world(journal: Journal, place: Place) -> World:
    world = World(journal)
    world.blobs = open_blobs(place.blobs)
    return world


async def _ending(running: Running, job_id: str) -> object:
    """All that a caller sees of a job's end, but its name, who did it and when; and every step, as often as it was."""
    job = await running.client.job(job_id)
    events = [told.event for told in await running.client.events(job_id)]
    steps = [(event.node, event.step) for event in events if isinstance(event, StepCompleted)]
    contents = {name: (await running.client.artifact(job_id, name))[1] for name in job.artifacts}
    return job.state, job.outputs, contents, steps, digests(await running.client.checkpoints(job_id))
