"""Jobs that people send back, at every step and across restarts: retried and rewound."""

import pytest

from engine.cancel import Outcome as CancelOutcome
from engine.errors import NoSuchStep, TensorsGone, Unrunnable
from engine.job import State
from tests import toy
from tests.engine.operating import ALL, STEPS, Flaky, ending, held, in_state, whole
from tests.sim import World, assert_unharmed, digests, request

# -- retry ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_job_that_failed_goes_on_at_the_step_that_failed(restarted: bool) -> None:
    family = Flaky()
    world = World(families=(family,))
    async with world.engine() as running:
        job = await running.ended((await running.client.submit(request(steps=STEPS))).id)
        assert job.failure is not None
        family.broken = False
        if not restarted:
            await running.client.verbs.retry(job.id, "mended")
            assert await ending(running, job.id) == await whole()
    if restarted:
        async with world.engine() as running:
            await running.client.verbs.retry(job.id, "mended")
            assert await ending(running, job.id) == await whole()
            assert len(running.workers[0].ran) == ALL - 3
    async with world.engine(workers=0) as running:
        job = await running.client.job(job.id)
        assert (job.failure, job.attempt) == (None, 2)


async def test_a_job_that_was_cancelled_may_be_retried_and_the_watchers_hear_of_it() -> None:
    async with World().engine() as running:
        job = await held(running, 3)
        await running.client.cancel(job.id)
        running.workers[0].open()
        assert (await running.ended(job.id)).state is State.CANCELLED
        seen = (await running.client.events(job.id))[-1].position
        await running.client.verbs.retry(job.id)
        heard = [told.type async for page in running.client.watch(job.id, after=seen) for told in page]

        assert (heard[0], heard[-1]) == ("job_retried", "job_completed")
        assert await ending(running, job.id) == await whole()


async def test_a_retry_whose_tensors_are_gone_says_where_there_are_some() -> None:
    world = World()
    async with world.engine() as running:
        job = await running.ended((await running.client.submit(request("a count big=70000 fail=3"))).id)
        steps = await running.client.checkpoints(job.id)
    world.blobs._data = {d: b for d, b in world.blobs._data.items() if d == steps[2].tensors["big"].digest}
    async with world.engine(workers=0) as running:
        with pytest.raises(TensorsGone, match=r"after step 4 of job .* no longer stored; the nearest are of 3$"):
            await running.client.verbs.retry(job.id)
        with pytest.raises(TensorsGone, match=r"after step 2 of .*; the nearest are of 1 and 3$"):
            await running.client.verbs.rewind(job.id, 2)
        assert (await running.client.verbs.rewind(job.id, 3)).job.state is State.QUEUED


async def test_a_job_of_other_weights_cannot_be_retried_here() -> None:
    world = World()
    job = await in_state(world, State.FAILED)
    world.families = (toy.ToyFamily(weights="other"),)
    async with world.engine(workers=0) as running:
        with pytest.raises(Unrunnable, match="pins weights"):
            await running.client.verbs.retry(job)


# -- rewind ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to_step", range(ALL))
@pytest.mark.parametrize("state", ["running", "paused", "failed", "cancelling"])
async def test_a_job_rewound_to_any_step_ends_as_if_it_had_not_been(state: str, to_step: int) -> None:
    family = Flaky()
    family.broken = state == "failed"
    async with World(families=(family,)).engine() as running:
        if state == "failed":
            job = await running.ended((await running.client.submit(request(steps=STEPS, preview_every=1))).id)
            family.broken = False
        else:
            job = await held(running, 5, preview_every=1)
        if state == "paused":
            await running.client.verbs.pause(job.id)
        if state == "cancelling":
            assert await running.client.cancel(job.id) is CancelOutcome.CANCELLING
        there = len(await running.client.checkpoints(job.id))
        if to_step > there:
            with pytest.raises(NoSuchStep, match=f"has completed {there}: give 0 to {there}"):
                await running.client.verbs.rewind(job.id, to_step)
            return
        rewound = await running.client.verbs.rewind(job.id, to_step)
        running.workers[0].open()
        if state == "paused":
            assert rewound.job.state is State.PAUSED
            await running.client.verbs.resume(job.id)
        job = await running.ended(job.id)
        steps = digests(await running.client.checkpoints(job.id))

        assert (job.state, job.outputs, steps) == ((await whole())[0], (await whole())[1], (await whole())[3])
        await assert_unharmed(running)


async def test_a_rewind_moves_the_epoch_on_so_that_what_is_out_decides_nothing() -> None:
    async with World().engine() as running:
        job = await held(running, 4)
        before = (await running.engine.ledger.find(job.id)).epoch
        await running.client.verbs.rewind(job.id, 1)
        events = await running.world.journal.read(f"job/{job.id}")
        [rewound] = [event for event in events if event.type == "job_rewound"]

        assert rewound.epoch == before + 1
        running.workers[0].open()
        assert await ending(running, job.id) == await whole()


async def test_artifacts_of_steps_that_were_taken_back_are_not_listed() -> None:
    world = World()
    async with world.engine() as running:
        job = await running.ended((await running.client.submit(request("a count fail=3", preview_every=2))).id)
        last = job.artifacts["preview.txt"]
    async with world.engine(workers=0, max_active=0) as running:
        earlier = await running.client.verbs.rewind(job.id, 2)
        assert earlier.job.artifacts["preview.txt"] != last
        assert (await running.client.verbs.rewind(job.id, 1)).job.artifacts == {}
        assert earlier.job.failure is None
