"""A job's life on the real engine, with workers that are tasks."""

import anyio
import pytest
from msgspec.structs import replace

from cards.errors import InvalidRequest, UnknownModel
from cards.wire import is_promised
from engine.errors import ArtifactNotFound, Draining, JobNotFound, KeyReused
from engine.job import State
from tests.failing_journals import QueuedJournal
from tests.sim import SimClock, World, digests, request


async def test_a_job_runs_from_submit_to_its_artifact() -> None:
    async with World().engine() as running:
        job = await running.client.submit(request(steps=3))
        job = await running.ended(job.id)
        kinds = [told.type for told in await running.client.events(job.id)]
        _, result = await running.client.artifact(job.id, "result.txt")

    assert job.state is State.COMPLETED
    assert kinds == [
        "job_submitted",
        "job_admitted",
        "node_started",
        "numerics_changed",
        "step_completed",
        "node_completed",
        "node_started",
        "step_completed",
        "step_completed",
        "step_completed",
        "node_completed",
        "node_started",
        "step_completed",
        "node_completed",
        "job_completed",
    ]
    assert result.startswith(b"[[")


async def test_a_submit_is_checked_against_the_card_and_leaves_nothing_behind() -> None:
    async with World().engine() as running:
        for bad in ({"steps": 0}, {"guidance": float("nan")}, {"seed": -1}, {"priority": 101}, {"prompt": "  "}):
            with pytest.raises(InvalidRequest) as caught:
                await running.client.submit(request(**bad))
            assert caught.value.field == next(iter(bad))
        with pytest.raises(UnknownModel, match="toy"):
            await running.client.submit(toy_request_of("nothing"))

        assert await running.client.jobs() == []


def toy_request_of(model: str):  # type: ignore[no-untyped-def]
    return replace(request(), model=model)


async def test_the_same_key_and_request_are_the_same_job_also_at_once() -> None:
    async with World().engine() as running:
        found: list[str] = []

        async def submit() -> None:
            found.append((await running.client.submit(request(), key="k")).id)

        async with anyio.create_task_group() as tasks:
            for _ in range(16):
                tasks.start_soon(submit)

        assert len(set(found)) == 1
        with pytest.raises(KeyReused):
            await running.client.submit(request(steps=5), key="k")
        assert len(await running.client.jobs()) == 1


async def test_a_seed_that_was_left_out_is_drawn_once() -> None:
    async with World().engine() as running:
        job = await running.client.submit(replace(request(), seed=None))
        told = await running.client.events(job.id, limit=1)

    assert told[0].event.request.seed == job.request.seed  # type: ignore[union-attr]


async def test_words_outside_the_vocabulary_are_an_event_and_no_error() -> None:
    async with World().engine() as running:
        job = await running.client.submit(request("an unknown count"))
        job = await running.ended(job.id)

    assert job.state is State.COMPLETED
    assert [notice.code for notice in job.notices] == ["unknown_words"]


async def test_unknown_names_are_errors() -> None:
    async with World().engine() as running:
        for ask in (running.client.job, running.client.cancel, running.client.events, running.client.checkpoints):
            with pytest.raises(JobNotFound):
                await ask("job-nowhere")
        job = await running.client.submit(request())
        with pytest.raises(ArtifactNotFound, match="none yet"):
            await running.client.artifact(job.id, "video.mp4")


@pytest.mark.parametrize("workers", [1, 3])
async def test_jobs_interleaved_equal_the_same_jobs_run_alone(workers: int) -> None:
    requests = [request(f"a count big={70_000 + n}", steps=3 + n % 4, seed=n) for n in range(12)]

    alone = []
    for one in requests:
        async with World().engine() as running:
            job = await running.ended((await running.client.submit(one)).id)
            alone.append((job.artifacts, digests(await running.client.checkpoints(job.id))))
    async with World().engine(workers=workers) as running:
        jobs = [await running.client.submit(one) for one in requests]
        ended = [await running.ended(job.id) for job in jobs]
        together = [(job.artifacts, digests(await running.client.checkpoints(job.id))) for job in ended]
        first = [unit.id.job for unit in running.workers[0].ran]

    assert together == alone
    if workers == 1:
        assert first != sorted(first), "the jobs ran one after the other: nothing was interleaved"


async def test_the_step_that_is_sure_to_follow_is_there_when_one_is_done() -> None:
    async with World().engine() as running:
        worker = running.workers[0]
        worker.gate = anyio.Event()
        job = await running.client.submit(request(steps=100))
        worker.gate.set()
        await running.until(lambda: any(unit.plan.loop == "count" for unit in worker.ran))
        worker.gate = anyio.Event()
        await running.until(lambda: running.client.statistics().outstanding_units == 2)
        ahead = running.engine.ledger.actors[job.id].out[1].plan
        worker.gate.set()

        assert is_promised(ahead.reads["x"])
        assert (await running.ended(job.id)).state is State.COMPLETED


async def test_what_is_known_of_a_worker_does_not_grow_with_the_steps_behind() -> None:
    async with World().engine() as running:
        job = await running.client.submit(request(steps=100))
        await running.until(lambda: job.id in running.engine.ledger.actors)
        actor = running.engine.ledger.actors[job.id]
        await running.ended(job.id)

        assert len(actor.held) < 10


async def test_a_step_that_depends_on_what_the_last_one_found_waits_for_it() -> None:
    async with World().engine() as running:
        one = await running.ended((await running.client.submit(request("a count"))).id)
        other = await running.ended((await running.client.submit(request("a count adaptive=1"))).id)
        reads = [ref for unit in running.workers[0].ran if unit.id.job == other.id for ref in unit.plan.reads.values()]

        assert other.artifacts == one.artifacts
        assert not any(is_promised(ref) for ref in reads)


async def test_a_higher_priority_goes_first() -> None:
    async with World().engine(workers=0) as running:
        low = [await running.client.submit(request(priority=0, seed=n)) for n in range(4)]
        high = await running.client.submit(request(priority=5))
        await running.until(lambda: len(running.engine.ledger.actors) == 5)
        running.add_worker(credits=1)
        await running.ended(high.id)
        running.engine.fleet.seats.clear()

        assert not any([(await running.client.job(job.id)).terminal for job in low])


async def test_nobody_is_told_of_what_is_not_durable() -> None:
    world = World()
    slow = QueuedJournal(world.journal)
    async with world.engine(journal=slow, window=3) as running:
        job = await running.client.submit(request(steps=20))
        await running.until(lambda: len(running.workers[0].ran) >= 2)
        slow.held = True
        await anyio.sleep(0.05)
        ran = len(running.workers[0].ran)
        told = (await running.client.job(job.id)).place
        await anyio.sleep(0.05)

        assert len(running.workers[0].ran) <= ran + 1, "it ran further ahead of the disk than its window"
        assert (await running.client.job(job.id)).place == told
        slow.release()
        assert (await running.ended(job.id)).state is State.COMPLETED


async def test_a_drained_engine_hands_its_jobs_back_between_two_steps() -> None:
    world = World()
    async with world.engine() as running:
        job = await running.client.submit(request(steps=50))
        await running.until(lambda: len(running.workers[0].ran) >= 5)
        await running.engine.drain(grace_s=5)
        with pytest.raises(Draining):
            await running.client.submit(request())
        assert not running.client.readiness().ready
        kinds = [told.type for told in await running.client.events(job.id)]
        assert (await running.client.job(job.id)).state is State.QUEUED

    assert kinds[-1] == "job_released"
    async with world.engine() as running:
        assert (await running.ended(job.id)).state is State.COMPLETED


async def test_an_idle_hour_does_not_make_a_new_job_late() -> None:
    clock = SimClock()
    async with World(clock=clock).engine() as running:
        await running.until(lambda: running.client.readiness().ready)
        running.engine.fleet.silent_s = 1e9
        clock.advance(3600)
        running.workers[0].frozen = True
        await running.client.submit(request())
        await running.until(lambda: len(running.engine.ledger.actors) == 1)

        assert running.client.readiness().ready


async def test_readiness_tells_the_truth() -> None:
    clock = SimClock()
    async with World(clock=clock).engine(workers=0) as running:
        assert running.client.readiness().reasons == ("no worker has joined",)
        running.add_worker()
        await running.until(lambda: running.client.readiness().ready)

        frozen = running.workers[0]
        frozen.frozen = True
        await running.client.submit(request())
        await running.until(lambda: len(running.engine.ledger.actors) == 1)
        running.engine.fleet.silent_s = 1e9
        clock.advance(121)
        assert any("nothing has moved" in reason for reason in running.client.readiness().reasons)


async def test_a_watcher_sees_every_event_once_and_the_end() -> None:
    async with World().engine() as running:
        job = await running.client.submit(request(steps=30))
        seen = [told.position async for page in running.client.watch(job.id) for told in page]
        again = [told.position for told in await running.client.events(job.id)]

        assert seen == again == sorted(set(seen))
        assert [page async for page in running.client.watch(job.id, after=seen[-1])] == []


async def test_who_watches_an_engine_that_stops_is_let_go_with_all_that_was_written() -> None:
    async with World().engine() as running:
        job = await running.client.submit(request(steps=2000))
        seen: list[int] = []

        async def watch() -> None:
            async for page in running.client.watch(job.id, heartbeat_s=1000):
                seen.extend(told.position for told in page)

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch)
                await running.until(lambda: len(seen) > 5)
                await running.engine.drain(5.0)

        events = await running.client.events(job.id, limit=10_000)
        assert seen == [told.position for told in events]
        assert events[-1].type == "job_released"


async def test_an_engine_that_stops_takes_no_verb_that_it_might_not_live_to_answer() -> None:
    async with World().engine() as running:
        job = await running.client.submit(request(steps=2000))
        await running.until(lambda: bool(running.engine.ledger.actors))
        await running.engine.drain(5.0)

        for verb in (running.client.verbs.pause, running.client.cancel):
            with anyio.fail_after(5), pytest.raises(Draining):
                await verb(job.id)
