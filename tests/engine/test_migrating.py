"""Jobs that are moved: from pool to pool at every step, to another engine, off a worker that is to leave."""

from typing import Any

import pytest

from engine.errors import NoSuchPlace, NotAllowed
from engine.job import State
from engine.operate import Migration, Outcome
from store.memory import MemoryJournal
from tests import toy
from tests.sim import Running, SimClock, World, assert_unharmed, digests, request

STEPS = 4
ALL = STEPS + 2


async def two_pools(running: Running) -> None:
    running.add_worker(pool="other")
    await running.until(lambda: len(running.engine.fleet.seats) == 2)


async def steps(running: Running, job: str) -> list[Any]:
    return digests(await running.client.checkpoints(job))


async def with_another_engine() -> World:
    """A world in which another engine holds a lease, and does nothing so far."""
    world = World()
    await world.journal.hold_lease("another", ttl_s=1e9, models=("toy",))
    return world


async def whole() -> list[Any]:
    async with World().engine() as running:
        job = await running.ended((await running.client.submit(request("a count big=70000", steps=STEPS))).id)
        return await steps(running, job.id)


async def held(running: Running, units: int) -> str:
    """A job whose first worker holds on to the answer of its `units`-th step."""
    running.workers[0].hold_at = units
    job = await running.client.submit(request("a count big=70000", steps=STEPS))
    await running.until(lambda: running.workers[0].gate is not None and running.engine.results.steps >= units - 1)
    await running.engine.ledger.settled()
    return job.id


@pytest.mark.parametrize("units", range(1, ALL + 1))
async def test_a_job_moved_between_pools_at_any_step_makes_the_same_bytes(units: int) -> None:
    async with World().engine() as running:
        await running.until(lambda: bool(running.engine.fleet.seats))
        job = await held(running, units)
        await two_pools(running)
        first, second = running.workers
        moved = await running.client.verbs.migrate(job, pool="other")
        assert second.ran == [], "a step is out: the next one waits until it is back"
        first.open()
        ended = await running.ended(job)

        assert (moved.outcome, moved.origin, moved.destination) == (Outcome.DONE, "pool:default", "pool:other")
        assert (ended.state, ended.pool, ended.attempt) == (State.COMPLETED, "other", 1)
        assert await steps(running, job) == await whole()
        assert len(first.ran) + len(second.ran) == ALL, "no step is run twice"
        assert len(first.ran) <= units + 1
        running.workers.pop()
        await running.until(lambda: not second.executor.resident.held().tensors)


async def test_a_job_that_moves_to_and_fro_makes_the_same_bytes() -> None:
    async with World().engine() as running:
        await two_pools(running)
        job = await running.client.submit(request("a count big=70000", steps=40))
        for n in range(12):
            await running.until(lambda n=n: running.engine.results.steps > 3 * n)
            await running.client.verbs.migrate(job.id, pool=("other", "default")[n % 2])
        await running.ended(job.id)
        alone = await running.client.submit(request("a count big=70000", steps=40))
        await running.ended(alone.id)

        assert await steps(running, job.id) == await steps(running, alone.id)
        assert all(worker.ran for worker in running.workers)


async def test_a_job_that_waits_for_a_full_pool_goes_to_an_idle_one_at_once() -> None:
    async with World().engine() as running:
        await two_pools(running)
        running.workers[0].hold_at = 1
        running.workers[1].frozen = True
        first = await running.client.submit(request())
        await running.until(lambda: bool(running.workers[0].ran))
        running.workers[1].frozen = False
        job = await running.client.submit(request(seed=9))
        await running.client.verbs.migrate(job.id, pool="other")

        assert (await running.ended(job.id, within_s=5)).state is State.COMPLETED
        running.workers[0].open()
        await running.ended(first.id)


async def test_a_dry_run_says_what_would_happen_and_nothing_does() -> None:
    async with (await with_another_engine()).engine() as running:
        job = await held(running, 3)
        await two_pools(running)
        before = await running.client.events(job)
        plan = await running.client.verbs.migrate(job, pool="other", dry_run=True)
        to_engine = await running.client.verbs.migrate(job, engine="another", dry_run=True)

        tensors = 2 * 4 * 4 * 4 + 70_000  # the start, the count so far, and what is big
        assert plan == Migration(
            outcome=Outcome.PLANNED,
            job=job,
            origin="pool:default",
            destination="pool:other",
            node="count",
            step=1,
            nbytes=tensors,
        )
        assert (to_engine.origin, to_engine.destination) == ("engine:engine", "engine:another")
        assert await running.client.events(job) == before


async def test_a_move_to_where_the_job_is_moves_no_bytes() -> None:
    async with World().engine() as running:
        job = await held(running, 3)
        moved = await running.client.verbs.migrate(job, pool="default")
        again = await running.client.verbs.migrate(job, pool="default")

        assert (moved.outcome, moved.nbytes) == (Outcome.DONE, 0)
        assert again.outcome is Outcome.UNCHANGED


async def test_a_job_whose_engine_is_gone_is_moved_before_another_one_has_taken_it() -> None:
    world = World()
    async with world.engine() as running:
        job = await held(running, 3)
    async with world.engine(workers=0, max_active=0) as running:
        running.add_worker(pool="other")
        await running.until(lambda: bool(running.engine.fleet.seats))
        await running.client.verbs.migrate(job, pool="other")
        await running.engine.ledger.settled()
        moved = await running.client.job(job)

        assert (moved.state, moved.pool, moved.owner) == (State.QUEUED, "other", None)
        assert job not in running.engine.ledger.actors

    async with world.engine(workers=0) as running:
        running.add_worker(pool="other")
        assert (await running.ended(job)).state is State.COMPLETED
        assert await steps(running, job) == await whole()


async def test_a_job_that_another_engine_drives_is_moved_to_a_pool_of_this_one() -> None:
    clock = SimClock()
    world = World(MemoryJournal(clock.monotonic, shared=True), clock=clock)
    async with world.engine(name="one") as one, world.engine(name="two", workers=0) as two:
        for running in (one, two):
            await running.until(lambda running=running: running.engine.lease.held)
        job = await held(one, 3)
        for running in (one, two):  # either may take it then
            running.add_worker(pool="other")
        await two.until(lambda: bool(two.engine.fleet.seats))
        await two.client.verbs.migrate(job, pool="other")
        one.workers[0].open()
        ended = await two.ended(job)

        assert (ended.state, ended.pool) == (State.COMPLETED, "other")
        assert await steps(two, job) == await whole()


@pytest.mark.parametrize("dry_run", [True, False])
async def test_a_pool_that_is_not_there_or_lacks_the_model_is_refused(dry_run: bool) -> None:
    world = World()
    async with world.engine() as running:
        await running.until(lambda: bool(running.engine.fleet.seats))
        world.families = (toy.ToyFamily(weights="other"),)
        await two_pools(running)
        job = await running.client.submit(request())
        with pytest.raises(NoSuchPlace, match="no worker of a pool 'nope' is here; there are: default, other"):
            await running.client.verbs.migrate(job.id, pool="nope", dry_run=dry_run)
        with pytest.raises(NoSuchPlace, match="no worker of pool 'other' takes work for the card and weights of 'toy'"):
            await running.client.verbs.migrate(job.id, pool="other", dry_run=dry_run)
        await running.ended(job.id)
        with pytest.raises(NotAllowed, match="is completed: migrate"):
            await running.client.verbs.migrate(job.id, pool="default", dry_run=dry_run)


async def test_a_job_waits_for_its_pool_and_says_so() -> None:
    async with World().engine() as running:
        await two_pools(running)
        running.workers[0].hold_at = 2
        job = await running.client.submit(request())
        await running.until(lambda: running.workers[0].gate is not None)
        await running.client.verbs.migrate(job.id, pool="other")
        await running.engine.lose(running.workers[1].name, "gone")
        running.workers[0].open()
        await running.until(lambda: running.client.statistics().outstanding_units == 0)
        told = await running.client.job(job.id)
        assert "no worker of pool 'other'" in (running.client.held_up(told) or "")
        running.add_worker(pool="other")

        assert (await running.ended(job.id)).state is State.COMPLETED


@pytest.mark.parametrize("units", range(1, ALL))
async def test_a_job_sent_to_another_engine_leaves_after_its_step_and_goes_on_there(units: int) -> None:
    world = await with_another_engine()
    async with world.engine() as running:
        job = await held(running, units)
        running.tasks.start_soon(release_soon, running)
        moved = await running.client.verbs.migrate(job, engine="another")
        there = await running.client.job(job)
        ran = len(running.workers[0].ran)
        assert (moved.outcome, moved.destination) == (Outcome.DONE, "engine:another")
        assert (there.state, there.owner) == (State.QUEUED, "another")
        assert len(await running.client.checkpoints(job)) == ran, "the step that ran is kept"
        await running.engine.reconcile()
        assert job not in running.engine.ledger.actors, "the other engine is alive, so the job is that one's"
        await assert_unharmed(running)
    async with world.engine(name="another") as running:
        ended = await running.ended(job)
        assert ended.state is State.COMPLETED
        assert await steps(running, job) == await whole()
        assert len(running.workers[0].ran) == ALL - ran


@pytest.mark.parametrize("alive", [False, True])
async def test_a_job_is_sent_to_no_engine_that_is_not_there(alive: bool) -> None:
    world = World()
    await world.journal.hold_lease("another", ttl_s=1 if alive else -1)
    async with world.engine(workers=0) as running:
        job = await running.client.submit(request())

        with pytest.raises(NoSuchPlace, match=r"no engine 'nowhere' works on this store; there are: .*engine"):
            await running.client.verbs.migrate(job.id, engine="nowhere")
        with pytest.raises(NoSuchPlace, match="engine:another" if alive else "engine:engine"):
            await running.client.destination("nowhere")


async def release_soon(running: Running) -> None:
    await running.until(lambda: any(actor.parting for actor in running.engine.ledger.actors.values()))
    running.workers[0].open()


async def test_a_job_that_is_done_before_it_could_leave_stays() -> None:
    async with (await with_another_engine()).engine() as running:
        job = await held(running, ALL)
        running.tasks.start_soon(release_soon, running)
        with pytest.raises(NotAllowed, match="is completed"):
            await running.client.verbs.migrate(job, engine="another")
        assert (await running.client.job(job)).state is State.COMPLETED


async def test_a_paused_job_is_sent_to_an_engine_and_resumed_there() -> None:
    world = await with_another_engine()
    async with world.engine(workers=0) as running:
        job = await running.client.submit(request())
        await running.client.verbs.pause(job.id)
        moved = await running.client.verbs.migrate(job.id, engine="another")
        assert moved.origin is None
    async with world.engine(name="another") as running:
        resumed = await running.client.verbs.resume(job.id)
        assert resumed.job.owner == "another"
        assert (await running.ended(job.id)).state is State.COMPLETED


# -- workers that are to leave --------------------------------------------------------------------------------------


@pytest.mark.parametrize("units", range(1, ALL + 1))
async def test_a_worker_is_drained_at_any_step_and_nobody_loses_one(units: int) -> None:
    async with World().engine() as running:
        job = await held(running, units)
        first = running.workers[0]
        await running.client.drain_worker(first.name)
        assert not running.client.servable("toy")
        running.add_worker()
        await running.until(lambda: running.client.servable("toy"))
        first.open()
        ended = await running.ended(job)
        await running.until(lambda: first.dead and first.name not in running.engine.fleet.seats)

        assert (ended.state, ended.attempt) == (State.COMPLETED, 1)
        assert await steps(running, job) == await whole()
        assert len(first.ran) + len(running.workers[1].ran) == ALL


async def test_an_idle_worker_that_is_drained_leaves_at_once() -> None:
    async with World().engine() as running:
        await running.until(lambda: bool(running.engine.fleet.seats))
        seen = await running.client.drain_worker(running.workers[0].name)
        assert (seen.draining, seen.outstanding) == (True, 0)
        await running.until(lambda: not running.engine.fleet.seats)
        assert running.workers[0].dead
