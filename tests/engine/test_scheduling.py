"""Whole behaviours of the scheduler in an engine: who waits for whom, what fits, and who pays for a death."""

import anyio
import pytest

from cards.errors import InvalidRequest
from cards.request import GenerationRequest
from engine.events import StepCompleted, WorkerLost
from engine.job import State
from engine.scheduling.scheduler import Limits
from tests.measured import GIB, MeasuredToy
from tests.sim import Running, SimWorker, World, assert_unharmed, digests, request

MOST = Limits(batch_most=4)


async def steps_of(running: Running, job: str) -> list[tuple[str, int, dict[str, str]]]:
    return digests(await running.client.checkpoints(job))


async def submitted(running: Running, *requests: GenerationRequest) -> list[str]:
    return [(await running.client.submit(one)).id for one in requests]


@pytest.mark.parametrize("policy", ["round_robin", "fair", "deadline", "batch_first"])
async def test_short_jobs_get_through_beside_a_long_one_and_the_long_one_ends(policy: str) -> None:
    async with World().engine(policy=policy) as running:
        for seed in (7, 8):  # after the second it is known what steps take
            await running.ended(*await submitted(running, request(steps=1, seed=seed)))
        (long,) = await submitted(running, request(steps=300, seed=1))
        await running.until(lambda: running.engine.results.steps > 20)
        for seed in range(2, 7):
            before = running.engine.results.steps
            (short,) = await submitted(running, request(steps=1, seed=seed, deadline_s=0.1, tenant="another"))
            await running.ended(short)
            assert running.engine.results.steps - before < 60, "three steps of its own, and the long job's between them"
        assert not (await running.client.job(long)).terminal

        assert (await running.ended(long)).state is State.COMPLETED
        await assert_unharmed(running)


async def test_a_deadline_is_heeded_behind_hundreds_of_jobs() -> None:
    async with World().engine(workers=0) as running:
        await submitted(running, *(request(steps=50, seed=seed) for seed in range(300)))
        (short,) = await submitted(running, request(steps=1, deadline_s=2.5))
        await running.until(lambda: len(running.engine.dispatcher.waiting()) == 301)
        running.add_worker()
        await running.ended(short)

        assert running.engine.results.steps < 60


async def test_what_fits_alone_but_not_beside_another_waits_and_says_for_what() -> None:
    """A worker of these has 1 GiB, each job keeps 0.7 of it."""
    async with World(families=[MeasuredToy(resident=int(0.35 * GIB))]).engine() as running:
        worker = running.workers[0]
        worker.hold_at = 3  # the first job's second counting step
        first, second = await submitted(running, *(request(steps=30, seed=seed) for seed in (1, 2)))
        await running.until(lambda: worker.gate is not None)
        await running.until(lambda: second in running.engine.ledger.actors)
        await anyio.sleep(0.1)

        why = running.client.held_up(await running.client.job(second))
        assert why is not None
        assert why.startswith("waits for memory: needs 0.7 GiB, worker-1 has ")
        assert {unit.id.job for unit in worker.ran} == {first}
        assert running.client.held_up(await running.client.job(first)) is None
        worker.open()
        assert (await running.ended(second)).state is State.COMPLETED
        jobs = [unit.id.job for unit in worker.ran]
        assert jobs == sorted(jobs), "the second began when the first had ended"
        await assert_unharmed(running)


async def test_a_job_that_no_worker_could_ever_hold_is_refused_with_what_is_missing() -> None:
    async with World(families=[MeasuredToy()]).engine() as running:
        await running.until(lambda: bool(running.engine.fleet.seats))

        with pytest.raises(InvalidRequest, match=r"needs 3\.0 GiB beside the weights, the largest worker has 1\.0 GiB"):
            await running.client.submit(request(guidance=4.0))
        await assert_unharmed(running)


async def test_a_job_that_has_a_rest_leaves_the_line() -> None:
    """Else a worker would be kept for it, or its turn be taken."""
    async with World().engine(workers=0, watch_s=0.02) as running:
        (job,) = await submitted(running, request(steps=5))
        await running.until(lambda: job in running.engine.dispatcher.scheduler.line)
        await running.client.verbs.pause(job)

        await running.until(lambda: job not in running.engine.dispatcher.scheduler.line)


async def test_a_job_that_was_taken_before_there_were_workers_fails_with_what_is_missing() -> None:
    async with World(families=[MeasuredToy()]).engine(workers=0, patience_s=0.2) as running:
        (large,) = await submitted(running, request(guidance=4.0))
        running.add_worker()
        job = await running.ended(large)

        assert job.state is State.FAILED
        assert job.failure is not None
        assert job.failure.kind == "too_large"
        assert job.failure.message == "needs 3.0 GiB beside the weights, the largest worker has 1.0 GiB"
        assert (job.failure.node, job.failure.step) == ("prepare", 0), "nothing is begun that cannot be ended"
        await assert_unharmed(running)


def add_large_worker(running: Running) -> SimWorker:
    running.add_worker(memory_bytes=8 * GIB)
    return running.workers[-1]


async def test_a_large_step_that_waits_for_a_worker_which_dies_does_not_go_to_a_small_one() -> None:
    async with World(families=[MeasuredToy()]).engine(workers=0, patience_s=60.0) as running:
        large = add_large_worker(running)
        large.hold_at = 3
        first, second = await submitted(running, *(request(guidance=4.0, seed=seed) for seed in (1, 2)))
        await running.until(lambda: large.gate is not None and second in running.engine.ledger.actors)
        running.add_worker()
        await running.until(lambda: len(running.engine.fleet.seats) == 2)
        small = running.workers[-1]
        large.dead = True
        await running.engine.lose(large.name, "was killed")

        assert set(running.engine.dispatcher.unfit) == {first, second}
        assert not small.ran
        add_large_worker(running)
        assert {(await running.ended(job)).state for job in (first, second)} == {State.COMPLETED}


async def test_a_job_that_is_too_large_waits_a_while_for_a_larger_worker() -> None:
    async with World(families=[MeasuredToy()]).engine(workers=0, patience_s=60.0) as running:
        (large,) = await submitted(running, request(guidance=4.0))
        running.add_worker()
        await running.until(lambda: large in running.engine.dispatcher.unfit)
        assert running.client.held_up(await running.client.job(large)) is not None
        worker = add_large_worker(running)

        assert (await running.ended(large)).state is State.COMPLETED
        assert {unit.plan.loop for unit in worker.ran} >= {"count"}


@pytest.mark.parametrize("policy", ["round_robin", "deadline"])
async def test_steps_of_several_jobs_are_executed_together_to_the_same_bits(policy: str) -> None:
    jobs = [request(steps=20, seed=seed) for seed in range(4)]
    async with World(families=[MeasuredToy()]).engine() as running:
        alone = [await steps_of(running, (await running.ended(job)).id) for job in await submitted(running, *jobs)]
        assert all(reserved.kind.batch == 1 for reserved in running.client.capacity().costs)

    async with World(families=[MeasuredToy()]).engine(limits=MOST, policy=policy) as running:
        worker = running.workers[0]
        worker.gate = anyio.Event()
        ids = await submitted(running, *jobs)
        await running.until(lambda: len(running.engine.ledger.actors) == 4)
        worker.open()
        together = [await steps_of(running, (await running.ended(job)).id) for job in ids]
        sizes = {cost.kind.batch for cost in running.client.capacity().costs}

        assert together == alone
        assert 4 in sizes, "all four ran together for a while"
        await assert_unharmed(running)


async def test_after_a_death_all_of_the_batch_are_suspects_and_run_alone_until_they_are_cleared() -> None:
    async with World(families=[MeasuredToy()]).engine(limits=MOST, policy="round_robin") as running:
        worker = running.workers[0]
        worker.gate = anyio.Event()
        poison, *innocent = await submitted(
            running, request("a count die=6", steps=20, seed=1), *(request(steps=20, seed=seed) for seed in (2, 3))
        )
        await running.until(lambda: len(running.engine.ledger.actors) == 3)
        worker.open()
        died = 0
        while not (await running.client.job(poison)).terminal:
            await running.until(lambda: running.workers[-1].dead or not running.engine.ledger.actors.get(poison))
            if running.workers[-1].dead:
                died += 1
                await running.until(running.link.inbox.empty)  # its last words decide of what it died
                await running.engine.lose(running.workers[-1].name, "was killed")
                running.add_worker()
            await anyio.sleep(0.01)

        assert died == running.engine.settings.max_deaths
        assert (await running.client.job(poison)).state is State.FAILED
        for job in innocent:
            assert (await running.ended(job)).state is State.COMPLETED
            told = await running.client.events(job)
            assert sum(one.event.blamed for one in told if isinstance(one.event, WorkerLost)) <= 1


async def test_what_steps_took_is_known_to_the_next_engine() -> None:
    world = World()
    async with world.engine() as running:
        await running.ended((await running.client.submit(request(steps=30))).id)
        known = {cost.kind: cost for cost in running.client.capacity().costs if cost.samples}
        await running.engine.drain(5.0)

    async with world.engine() as running:
        await running.until(lambda: bool(running.client.capacity().costs))
        again = {cost.kind: cost for cost in running.client.capacity().costs}

        assert known
        assert {kind: again[kind].mean_s for kind in known} == {kind: cost.mean_s for kind, cost in known.items()}


async def test_what_a_job_has_had_of_devices_is_known_to_whoever_takes_it_over() -> None:
    world = World()
    async with world.engine() as running:
        worker = running.workers[0]
        worker.hold_at = 20
        (job,) = await submitted(running, request(steps=50))
        await running.until(lambda: worker.gate is not None)
        await running.engine.ledger.settled()

    async with world.engine(workers=0) as running:
        await running.until(lambda: bool(running.engine.dispatcher.waiting()))
        (step,) = running.engine.dispatcher.waiting()
        told = [one.event for one in await running.client.events(job)]
        had = [event.seconds for event in told if isinstance(event, StepCompleted)]
        forked = await running.client.fork(job, at_step=10)
        await running.until(lambda: forked.id in running.engine.ledger.actors)

        assert step.served_s == pytest.approx(sum(had)) != 0.0
        assert running.engine.ledger.actors[forked.id].served_s == 0.0, "those steps were its parent's"


async def test_capacity_says_what_waits_and_what_workers_have() -> None:
    async with World(families=[MeasuredToy(resident=GIB // 8)]).engine() as running:
        worker = running.workers[0]
        worker.hold_at = 4
        await submitted(running, *(request(steps=50, seed=seed, guidance=1.25) for seed in range(4)))
        await running.until(lambda: worker.gate is not None and len(running.engine.ledger.actors) == 4)
        await running.until(lambda: running.client.statistics().ready_steps > 0)
        seen = running.client.capacity()

        assert (seen.workers[0].id, seen.workers[0].memory_bytes) == (worker.name, GIB)
        assert 0 < seen.workers[0].reserved_bytes <= GIB
        assert seen.waiting > 0
        assert 0 < seen.waiting_s <= seen.left_s
        worker.open()
