"""What is done to whole jobs, from being submitted to being forgotten or moved."""

import time
from contextlib import suppress
from pathlib import Path

import anyio

from cards.request import RequestChanges
from engine import bundle
from engine.collect import Retention, collect
from engine.contents import Contents
from engine.errors import JobExists, JobNotFound, NotAllowed
from engine.job import State
from tests.crash.retried import FIRST, engine, followed
from tests.crash.scenario import Tell
from tests.sim import Running, World, request

PROMPT = "a count big=70000"
"""Of each step some bytes are kept inline and some in the blob store."""

REQUEST = request(PROMPT, steps=3, preview_every=2)

ONLY, THIRD = "job-0001", "job-0003"
"""The jobs that are there before, by their number."""

GC = Retention(purge_over=1, steps_last=1, steps_every=0, grace_s=-60)
"""One finished job stays, with its last step; nothing is young enough to stay without a name."""

# -- what is there before ---------------------------------------------------------------------------------------


async def a_finished_job(world: World) -> None:
    async with engine(world, FIRST) as running:
        running.add_worker()
        await running.ended((await running.client.submit(REQUEST)).id)


async def a_half_done_job(world: World) -> None:
    """Its engine has ended without a word in the middle of a step, and another job waits."""
    async with engine(world, FIRST) as running:
        await _begun(running)
        await running.client.submit(request(steps=1))
        await running.engine.ledger.settled()


async def a_paused_job(world: World) -> None:
    async with engine(world, FIRST) as running:
        job = await _begun(running)
        await running.client.verbs.pause(job)
        running.workers[0].open()
        await running.until(lambda: job not in running.engine.ledger.actors)


async def old_and_new_jobs(world: World) -> None:
    """Two that have ended, with other bytes, and one on its way."""
    async with engine(world, FIRST) as running:
        running.add_worker()
        for seed in (1, 2):
            await running.ended((await running.client.submit(request(PROMPT, steps=2, seed=seed))).id)
            await anyio.sleep(0.001)  # so that the second is the newer one
        await _begun(running)


async def _begun(running: Running) -> str:
    """A job whose third step is out, and what came before is on disk."""
    if not running.workers:
        running.add_worker()
    [worker] = running.workers
    worker.hold_at = len(worker.ran) + 3
    job = (await running.client.submit(REQUEST)).id
    await running.until(lambda: worker.gate is not None)
    await running.engine.ledger.settled()
    return job


# -- what is done -----------------------------------------------------------------------------------------------


async def a_job(running: Running, folder: Path, tell: Tell) -> str:
    """Ask for a job; for the same one, if it is there."""
    job = await running.client.submit(REQUEST, key="first")
    await followed(running, job.id, tell)
    return ""


async def a_takeover(running: Running, folder: Path, tell: Tell) -> str:
    """Go on with what another engine left."""
    for row in await running.client.jobs():
        await followed(running, row.id, tell)
    return ""


async def a_fork(running: Running, folder: Path, tell: Tell) -> str:
    fork = await running.client.fork(ONLY, 2, RequestChanges(guidance=2.0), key="second")
    await followed(running, fork.id, tell)
    return ""


async def a_migration(running: Running, folder: Path, tell: Tell) -> str:
    """Have a job go on in another pool than it was in, if it has not ended there before."""
    if not running.workers:
        running.add_worker(pool="other")
    await running.until(lambda: bool(running.engine.fleet.seats))
    with suppress(NotAllowed):
        await running.client.verbs.migrate(ONLY, pool="other")
    return await a_takeover(running, folder, tell)


async def a_collection(running: Running, folder: Path, tell: Tell) -> str:
    """Forget an old job, and bytes that nothing names, beside one that goes on and needs its own."""
    world = running.world
    registry = {family.card.name: family for family in world.families}

    async def collected() -> None:
        await collect(world.journal, world.blobs, registry, GC, now=time.time(), dry_run=False)

    await collected()
    await followed(running, THIRD, tell)
    await collected()
    inline = sorted(blob.digest for blob in await world.journal.inline_blobs())
    return repr((inline, sorted({blob.digest for blob in world.blobs.listing(time.time())})))


async def a_move(running: Running, folder: Path, tell: Tell) -> str:
    """Write a paused job to a file, let go of it, take it in again from there, and go on with it."""
    file = folder / "job.tar"
    if await _rests(running):
        world = running.world
        contents = Contents(world.journal, world.blobs)
        manifest = await bundle.export(world.journal, contents, ONLY, file, origin="here", moved=True, resumes=True)
        await running.client.verbs.move_away(ONLY, manifest.version, "there")
    with suppress(JobExists):  # it came before
        await running.client.take_in(file)
    await followed(running, ONLY, tell)
    return ""


async def _rests(running: Running) -> bool:
    """Whether it has not been let go of yet."""
    try:
        return (await running.client.job(ONLY)).state is State.PAUSED
    except JobNotFound:
        return False
