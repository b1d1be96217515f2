"""Jobs that people stop, at every step and across restarts: paused and resumed, terminated, quarantined."""

from collections.abc import Mapping

import anyio
import anyio.lowlevel
import pytest

from engine.cancel import Outcome as CancelOutcome
from engine.job import State
from engine.operate import Outcome
from store.blobs import MemoryBlobs
from store.errors import StoreUnavailable
from tests.engine.operating import ALL, VERBS, ending, held, whole
from tests.sim import World, assert_unharmed

# -- pause and resume -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("units", range(ALL + 1))
async def test_a_job_paused_at_any_step_stops_within_those_that_are_out_and_ends_the_same(units: int) -> None:
    async with World().engine() as running:
        worker = running.workers[0]
        job = await held(running, units)
        paused = await running.client.verbs.pause(job.id)
        assert paused.job.state is State.PAUSED
        worker.open()
        await running.until(lambda: job.id not in running.engine.ledger.actors)
        ran = len(worker.ran)
        await running.until(lambda: not worker.executor.resident.held().tensors)
        await anyio.sleep(0.05)  # reconciling leaves it alone
        assert len(worker.ran) == ran
        there = await running.client.job(job.id)
        if there.state is State.PAUSED:
            assert len(await running.client.checkpoints(job.id)) == ran <= units + 1
            assert (await running.client.verbs.resume(job.id)).outcome is Outcome.DONE

        assert await ending(running, job.id) == await whole()
        assert len(worker.ran) == ALL, "a step was run twice"
        await assert_unharmed(running)


async def test_a_job_paused_and_resumed_while_a_step_runs_keeps_that_step() -> None:
    async with World().engine() as running:
        worker = running.workers[0]
        job = await held(running, 1)
        await running.client.verbs.pause(job.id)
        await running.client.verbs.pause(job.id)
        resumed = await running.client.verbs.resume(job.id)
        assert resumed.job.state is State.RUNNING
        worker.open()

        assert await ending(running, job.id) == await whole()
        assert len(worker.ran) == ALL


async def test_the_last_step_of_a_paused_job_completes_it() -> None:
    async with World().engine() as running:
        job = await held(running, ALL)
        await running.client.verbs.pause(job.id)
        running.workers[0].open()

        assert await ending(running, job.id) == await whole()


@pytest.mark.parametrize("units", range(1, ALL + 1))
async def test_a_paused_job_survives_its_engine_and_goes_on_in_another(units: int) -> None:
    world = World()
    async with world.engine() as running:
        job = await held(running, units)
        await running.client.verbs.pause(job.id)
    async with world.engine() as running:
        await anyio.sleep(0.05)
        assert (await running.client.job(job.id)).state is State.PAUSED
        assert running.workers[0].ran == []
        await running.client.verbs.resume(job.id)

        assert await ending(running, job.id) == await whole()


async def test_a_paused_job_whose_worker_dies_stays_paused_and_leaves() -> None:
    async with World().engine() as running:
        worker = running.workers[0]
        job = await held(running, 1)
        await running.client.verbs.pause(job.id)
        await running.engine.lose(worker.name, "was killed by signal 9")
        await running.until(lambda: job.id not in running.engine.ledger.actors)
        assert (await running.client.job(job.id)).state is State.PAUSED
        running.add_worker()
        await running.client.verbs.resume(job.id)

        assert await ending(running, job.id) == await whole()


async def test_a_step_of_a_paused_job_that_the_blob_store_refused_is_run_again_after_its_resume() -> None:
    class Full(MemoryBlobs):
        full = True

        def put_named(self, blobs: Mapping[str, bytes]) -> None:
            if self.full:
                raise StoreUnavailable("the disk is full")
            super().put_named(blobs)

    world = World()
    world.blobs = blobs = Full()
    async with world.engine() as running:
        job = await held(running, 2, prompt="a count big=70000")
        await running.client.verbs.pause(job.id)
        running.workers[0].open()
        await running.until(lambda: job.id not in running.engine.ledger.actors)
        blobs.full = False
        await running.client.verbs.resume(job.id)

        assert (await running.ended(job.id)).state is State.COMPLETED
        await assert_unharmed(running)


# -- terminate and quarantine ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["terminate", "quarantine"])
@pytest.mark.parametrize("units", range(1, ALL + 1))
async def test_a_job_is_stopped_at_once_and_what_still_runs_decides_nothing(verb: str, units: int) -> None:
    async with World().engine() as running:
        job = await held(running, units)
        await VERBS[verb](running.client, job.id)
        assert job.id not in running.engine.ledger.actors
        steps = await running.client.checkpoints(job.id)
        assert len(steps) == units - 1
        running.workers[0].open()
        await assert_unharmed(running)

        assert await running.client.checkpoints(job.id) == steps
        again = "retry" if verb == "terminate" else "release"
        assert (await VERBS[again](running.client, job.id)).job.state is State.QUEUED
        assert await ending(running, job.id) == await whole()


async def test_a_cancel_that_hangs_is_ended_by_a_terminate() -> None:
    async with World().engine() as running:
        job = await held(running, 1)
        assert await running.client.cancel(job.id) is CancelOutcome.CANCELLING
        assert (await running.client.verbs.terminate(job.id)).job.state is State.CANCELLED
        running.workers[0].open()
        await assert_unharmed(running)
