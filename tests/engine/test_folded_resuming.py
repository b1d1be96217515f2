"""A loop whose state is a fold goes on elsewhere from any step: what is not stored is made again, to the bit."""

from pathlib import Path
from typing import Any

import pytest

from engine import bundle
from engine.check import check
from engine.collect import Retention, collect
from engine.contents import Contents
from engine.errors import TensorsGone
from engine.job import State
from engine.operate import Outcome
from store.blobs import MemoryBlobs
from store.memory import MemoryJournal
from tests.engine.folding import ALL, EVERY, LARGE, PROMPTS, SMALL, held, owed, steps, submitted, unfolded, world
from tests.engine.test_crash import crashed
from tests.failing_journals import CrashingJournal
from tests.folded import Folded
from tests.sim import Running, SimClock, World, request


@pytest.mark.parametrize(
    ("every", "prompt"), [(3, SMALL), (3, LARGE), (3, "a count adaptive=1"), (2, LARGE), (100, SMALL)]
)
@pytest.mark.parametrize("units", range(1, ALL + 1))
async def test_a_job_whose_engine_and_worker_die_at_any_step_makes_the_same_bytes(
    units: int, every: int, prompt: str
) -> None:
    there = world(every)
    async with there.engine() as running:
        job = await held(running, units, prompt)
    async with there.engine() as running:
        ended = await running.ended(job)
        [first, *others] = running.workers[0].ran

        assert ended.state is State.COMPLETED, ended.failure
        assert await steps(running, job) == await unfolded(prompt)
        assert len(first.refolds) == owed(units, every)
        assert all(unit.refolds == () for unit in others)
        assert (await check(there.journal)).problems == ()


@PROMPTS
@pytest.mark.parametrize("units", range(1, ALL + 1))
async def test_a_job_whose_worker_dies_at_any_step_goes_on_with_another(units: int, prompt: str) -> None:
    async with world().engine() as running:
        job = await held(running, units, prompt)
        running.add_worker()
        first, second = running.workers
        first.dead = True
        await running.engine.lose(first.name, "was killed by signal 9")
        ended = await running.ended(job)

        assert ended.state is State.COMPLETED, ended.failure
        assert await steps(running, job) == await unfolded(prompt)
        assert [len(unit.refolds) for unit in second.ran] == [owed(units, EVERY), *[0] * (ALL - units)]


async def test_a_job_that_changes_its_worker_at_every_step_makes_the_same_bytes() -> None:
    async with world().engine() as running:
        await running.until(lambda: bool(running.engine.fleet.seats))
        running.add_worker(pool="other")
        await running.until(lambda: len(running.engine.fleet.seats) == 2)
        running.workers[0].hold_at = 1
        job = await submitted(running, f"{LARGE} adaptive=1")  # whatever is sent ahead stays with its worker
        for units in range(1, ALL):
            here, there = running.workers if units % 2 else reversed(running.workers)
            await running.until(lambda here=here: here.gate is not None)
            moved = await running.client.verbs.migrate(job.id, pool=there.pool)
            assert moved.outcome is Outcome.DONE
            there.hold_at = len(there.ran) + 1
            here.open()
        there.open()
        await running.ended(job.id)

        assert await steps(running, job.id) == await unfolded(f"{LARGE} adaptive=1")
        ran = [len(unit.refolds) for worker in running.workers for unit in worker.ran]
        assert sorted(ran) == sorted(owed(units, EVERY) for units in range(1, ALL + 1))


@pytest.mark.parametrize("durable", [False, True])
async def test_a_folding_job_survives_a_crash_at_any_append(durable: bool) -> None:
    async def life(running: Running) -> None:
        job = await running.client.submit(request(steps=4), key="k")
        await running.ended(job.id)

    async def ending(running: Running) -> Any:
        [row] = await running.client.jobs()
        job = await running.client.job(row.id)
        return job.state, job.outputs, job.artifacts, await steps(running, job.id)

    async with world().engine() as running:
        await life(running)
        unbroken = await ending(running)
    assert unbroken[0] is State.COMPLETED

    nth, reached = 0, True
    while reached:
        nth += 1
        there = world()
        reached = await crashed(there, CrashingJournal(there.journal, nth, durable=durable), life)
        async with there.engine() as running:
            await life(running)
            assert await ending(running) == unbroken, f"append {nth}"
    assert nth > 6


@pytest.mark.parametrize("units", range(2, 7))
async def test_outputs_that_no_snapshot_holds_are_made_again_for_the_node_that_reads_them(units: int) -> None:
    """The loop ends sooner than it said, between two snapshots."""
    there = world()
    async with there.engine() as running:
        job = await held(running, units, "a count early=5")
    async with there.engine() as running:
        ended = await running.ended(job)

        assert ended.state is State.COMPLETED, ended.failure
        assert await steps(running, job) == await unfolded("a count early=5")
    async with there.engine() as running:
        again = await running.ended((await running.client.fork(job, 6)).id)
        assert again.artifacts == ended.artifacts
        assert len(running.workers[0].ran[0].refolds) == 2


@pytest.mark.parametrize("units", range(1, ALL))
async def test_a_job_that_is_moved_to_another_store_at_any_step_makes_the_same_bytes(
    tmp_path: Path, units: int
) -> None:
    here, there = world(), world()
    file = tmp_path / "job.tar"
    async with here.engine() as running:
        job = await held(running, units, LARGE)
        await running.client.verbs.pause(job)
        running.workers[0].open()
        await running.until(lambda: job not in running.engine.ledger.actors)
        done = len(await steps(running, job))
        contents = Contents(here.journal, here.blobs)
        manifest = await bundle.export(here.journal, contents, job, file, origin="here", resumes=True)
    async with there.engine() as running:
        await running.client.take_in(file)
        ended = await running.ended(job)

        assert manifest.absent == 0, "what is derived is not missed"
        assert ended.state is State.COMPLETED, ended.failure
        assert await steps(running, job) == await unfolded(LARGE)
        assert len(running.workers[0].ran[0].refolds) == owed(done + 1, EVERY)


@pytest.mark.parametrize("units", range(1, ALL + 1))
async def test_a_collection_leaves_what_a_state_is_made_of(units: int) -> None:
    clock = SimClock()
    there = World(MemoryJournal(clock.monotonic), families=(Folded(EVERY),), clock=clock)
    there.blobs = MemoryBlobs(clock.monotonic)
    retention = Retention(steps_last=1, steps_every=5)
    registry = {"toy": Folded(EVERY)}

    async def collected() -> None:
        clock.advance(4_000)
        await collect(there.journal, there.blobs, registry, retention, now=clock.now(), dry_run=False)

    async with there.engine() as running:
        job = await held(running, units, LARGE)
        await collected()
    async with there.engine() as running:
        ended = await running.ended(job)
        assert ended.state is State.COMPLETED, ended.failure
        assert await steps(running, job) == await unfolded(LARGE)

        await collected()
        for at_step in (4, 5):  # what was kept follows from the snapshot before it
            fork = await running.client.fork(job, at_step)
            assert (await running.ended(fork.id)).state is State.COMPLETED
        with pytest.raises(TensorsGone):
            await running.client.fork(job, 3)
