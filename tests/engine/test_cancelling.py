"""Jobs that are cancelled: at any step, by several at once, in a race, two hundred times."""

import anyio
import pytest

from engine.cancel import Outcome
from engine.job import State
from tests import toy
from tests.engine.operating import near_its_end
from tests.failing_journals import QueuedJournal
from tests.sim import Running, World, assert_unharmed, request


@pytest.mark.parametrize("units", range(8))
async def test_a_job_is_cancelled_at_any_step_within_one_step(units: int) -> None:
    async with World().engine() as running:
        job = await running.client.submit(request("a count big=70000", steps=4))
        await running.until(lambda: len(running.workers[0].ran) >= min(units, 6))
        outcome = await running.client.cancel(job.id)
        ran = len(running.workers[0].ran)
        job = await running.ended(job.id)

        if job.state is State.CANCELLED:
            assert outcome in (Outcome.CANCELLED, Outcome.CANCELLING)
            assert len(running.workers[0].ran) <= ran + 1
        else:
            assert outcome is Outcome.ALREADY_TERMINAL
        assert await running.client.cancel(job.id) is Outcome.ALREADY_TERMINAL
        await assert_unharmed(running)


async def test_a_job_that_waits_for_a_worker_is_cancelled_at_once() -> None:
    async with World().engine(workers=0) as running:
        job = await running.client.submit(request())

        assert await running.client.cancel(job.id) is Outcome.CANCELLED
        assert (await running.client.job(job.id)).state is State.CANCELLED


async def test_a_job_that_nobody_holds_in_memory_is_cancelled_in_the_log() -> None:
    world = World()
    async with world.engine(workers=0) as running:
        job = await running.client.submit(request())

    async with world.engine(workers=0, max_active=0) as running:
        assert await running.client.cancel(job.id) is Outcome.CANCELLED
        assert [told.type for told in await running.client.events(job.id)][-2:] == ["cancel_requested", "job_cancelled"]


async def test_a_cancel_that_races_completion_gives_one_of_the_two() -> None:
    seen = set()
    for spins in range(60):
        async with near_its_end(spins % 20) as (running, job):
            outcome = await running.client.cancel(job.id)
            job = await running.ended(job.id)
            kinds = [told.type for told in await running.client.events(job.id)]

        assert kinds.count("job_completed") + kinds.count("job_cancelled") == 1
        assert (job.state is State.COMPLETED) == (outcome is Outcome.ALREADY_TERMINAL)
        seen.add(job.state)
    assert seen == {State.CANCELLED, State.COMPLETED}, "the race was not run from both sides"


async def test_nothing_leaks_over_two_hundred_cancels() -> None:
    world = World()

    async def one(running: Running, n: int) -> None:
        job = await running.client.submit(request("a count big=70000", steps=5, seed=n))
        for _ in range(n % 40):
            await anyio.lowlevel.checkpoint()
        await running.client.cancel(job.id)
        await running.ended(job.id)

    async with world.engine(workers=2, journal=QueuedJournal(world.journal)) as running:
        for first in range(0, 200, 8):
            async with anyio.create_task_group() as tasks:
                for n in range(first, first + 8):
                    tasks.start_soon(one, running, n)
        await assert_unharmed(running)
        assert len(running.engine.ledger.actors) == 0


async def test_a_job_may_be_cancelled_by_several_at_once() -> None:
    world = World()
    for spins in range(30):
        outcomes: list[Outcome] = []

        async def cancel(running: Running, job: str, outcomes: list[Outcome] = outcomes) -> None:
            outcomes.append(await running.client.cancel(job))

        async with world.engine(journal=QueuedJournal(world.journal)) as running:
            job = await running.client.submit(request(steps=1000, seed=spins))
            await running.until(lambda running=running: len(running.workers[0].ran) > 4)
            for _ in range(spins):
                await anyio.lowlevel.checkpoint()
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(cancel, running, job.id)
            job = await running.ended(job.id)

        assert job.state is State.CANCELLED
        assert outcomes.count(Outcome.CANCELLED) <= 1
        assert Outcome.CANCELLED in outcomes or Outcome.CANCELLING in outcomes


async def test_a_caller_of_cancel_that_goes_away_changes_nothing() -> None:
    world = World()
    journal = QueuedJournal(world.journal)
    async with world.engine(journal=journal) as running:
        job = await running.client.submit(request(steps=200))
        await running.until(lambda: len(running.workers[0].ran) > 2)
        journal.held = True
        with anyio.move_on_after(0.02):
            await running.client.cancel(job.id)
        journal.release()

        assert (await running.ended(job.id)).state is State.CANCELLED
        await assert_unharmed(running)


async def test_a_cancel_that_was_under_way_when_its_engine_died_can_be_finished_without_its_weights() -> None:
    world = World()
    async with world.engine() as running:
        running.workers[0].gate = anyio.Event()
        job = await running.client.submit(request())
        await running.until(lambda: bool(running.workers[0].ran))
        assert await running.client.cancel(job.id) is Outcome.CANCELLING
    world.families = (toy.ToyFamily(weights="other"),)
    async with world.engine() as running:
        assert await running.client.cancel(job.id) is Outcome.CANCELLED


async def test_a_cancel_of_one_job_leaves_its_neighbours_alone() -> None:
    async with World().engine() as running:
        first, second = [await running.client.submit(request(seed=n, steps=20)) for n in (1, 2)]
        await running.until(lambda: len(running.workers[0].ran) > 6)
        await running.client.cancel(first.id)
        job = await running.ended(second.id)

    assert job.state is State.COMPLETED
