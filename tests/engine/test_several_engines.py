"""Several engines on one store: each job is driven by one of them, and goes on elsewhere when that one is gone."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from cards import registry
from cards.errors import InvalidRequest
from engine.actor import restore, saved_body, stream
from engine.errors import NoSuchPlace, StoreTrouble
from engine.events import CancelRequested, JobAdmitted, JobRecovered, JobResumed, encode
from engine.job import State, fold
from engine.operate import Outcome
from engine.share import offers, ours, runs
from engine.views import row
from store.errors import StoreUnavailable
from store.journal import Append, EngineRow, JobRow
from store.memory import MemoryJournal
from tests import toy
from tests.measured import MeasuredToy
from tests.sim import Running, SimClock, World, assert_unharmed, digests, request


def shared_world() -> tuple[World, SimClock]:
    clock = SimClock()
    return World(MemoryJournal(clock.monotonic, shared=True), clock=clock), clock


async def owners(running: Running, job: str) -> list[str]:
    """The engines that took the job, in turn."""
    events = [told.event for told in await running.client.events(job)]
    return [event.engine for event in events if isinstance(event, JobAdmitted | JobRecovered)]


async def held(*engines: Running) -> None:
    for running in engines:
        await running.until(lambda running=running: running.engine.lease.held)


async def test_jobs_are_shared_out_and_nobody_fights_for_one() -> None:
    world, _ = shared_world()
    async with world.engine(name="one") as one, world.engine(name="two") as two:
        await held(one, two)
        jobs = [await one.client.submit(request(seed=seed)) for seed in range(40)]
        ended = [await two.ended(job.id) for job in jobs]

        assert {job.state for job in ended} == {State.COMPLETED}
        drivers = [await owners(one, job.id) for job in jobs]
        assert all(len(each) == 1 for each in drivers)
        shares = Counter(each[0] for each in drivers)
        assert min(shares["one"], shares["two"]) > 8
        await assert_unharmed(one)
        await assert_unharmed(two)


async def test_the_jobs_of_a_dead_engine_wait_for_its_lease_and_no_longer() -> None:
    world, clock = shared_world()
    async with world.engine(name="two") as two:
        async with world.engine(name="one") as one:
            await held(one, two)
            two.workers[0].gate = one.workers[0].gate = anyio.Event()  # every step is under way
            jobs = [await one.client.submit(request(seed=seed)) for seed in range(10)]
            await one.until(lambda: len(one.engine.ledger.actors) + len(two.engine.ledger.actors) == 10)
            left = set(one.engine.ledger.actors)
            assert left
        two.workers[0].gate.set()
        two.workers[0].gate = None

        clock.advance(9.0)  # of 10
        await two.engine.renew()
        await two.engine.reconcile()
        assert not left & two.engine.ledger.actors.keys()
        clock.advance(2.0)
        await two.engine.reconcile()

        assert {(await two.ended(job.id)).state for job in jobs} == {State.COMPLETED}
        for job in left:
            assert await owners(two, job) == ["one", "two"]


async def test_a_stopped_engine_hands_its_jobs_over_at_once() -> None:
    world, _ = shared_world()
    async with world.engine(name="two") as two, world.engine(name="one") as one:
        await held(one, two)
        jobs = [await one.client.submit(request(steps=200, seed=seed)) for seed in range(8)]
        await one.until(lambda: len(one.engine.ledger.actors) + len(two.engine.ledger.actors) == 8)

        await one.engine.drain(5.0)

        await two.until(lambda: {job.id for job in jobs} == set(two.engine.ledger.actors))  # no clock was moved
        assert [engine.name for engine in await world.journal.engines()] == ["two"]


async def test_jobs_go_to_an_engine_that_has_workers_once_there_is_one() -> None:
    world, clock = shared_world()
    async with world.engine(name="one", workers=0) as one:
        await held(one)
        jobs = [await one.client.submit(request(seed=seed)) for seed in range(5)]
        await one.until(lambda: len(one.engine.ledger.actors) == 5)
        async with world.engine(name="two") as two:
            await held(two)
            await two.until(lambda: two.client.readiness().ready)
            await two.engine.renew()  # it says that it has a worker
            await one.engine.reconcile()
            assert len(one.engine.ledger.actors) == 5  # they have not waited long
            clock.advance(1.0)
            await one.engine.reconcile()

            assert {(await two.ended(job.id)).state for job in jobs} == {State.COMPLETED}
            for job in jobs:
                assert await owners(two, job.id) == ["one", "two"]


async def test_an_engine_that_was_frozen_past_its_lease_writes_nothing_more() -> None:
    world, clock = shared_world()
    expected = await alone(request(steps=6))
    async with world.engine(name="one") as one:
        await held(one)
        one.workers[0].gate = gate = anyio.Event()
        job = await one.client.submit(request(steps=6))
        await one.until(lambda: bool(one.workers[0].ran))

        one.engine.lease._journal = Unreachable(world.journal)
        world.journal._engines["one"] = ("", (), clock.monotonic())  # type: ignore[attr-defined]
        async with world.engine(name="two") as two:
            await held(two)
            ended = await two.ended(job.id)
            gate.set()  # its worker's answer comes now
            await one.until(lambda: not one.engine.ledger.actors)

        assert ended.state is State.COMPLETED
        assert await owners(one, job.id) == ["one", "two"]
        assert digests(await one.client.checkpoints(job.id)) == expected


async def test_an_engine_stops_by_its_own_clock_before_others_may_begin() -> None:
    world, clock = shared_world()
    async with world.engine(name="one", watch_s=100.0) as one:
        await held(one)
        one.workers[0].gate = anyio.Event()
        await one.client.submit(request())
        await one.until(lambda: bool(one.workers[0].ran))
        one.engine.lease._journal = Unreachable(world.journal)

        clock.advance(10.5)
        await one.until(lambda: not one.engine.lease.held)

        await one.engine.watch()
        assert not one.engine.ledger.actors
        [row] = await world.journal.claimable("two", 10)
        assert row.status == "running"


async def test_what_no_worker_could_hold_is_refused_unless_others_have_workers_for_the_model() -> None:
    world, _ = shared_world()
    world.families = (MeasuredToy(),)
    large = request(guidance=4.0)
    async with world.engine(name="one") as one:
        await served(one)
        with pytest.raises(InvalidRequest, match=r"needs 3\.0 GiB beside the weights"):
            await one.client.submit(large)

        async with world.engine(name="two", workers=0) as two:
            await held(two)
            with pytest.raises(InvalidRequest, match=r"needs 3\.0 GiB beside the weights"):
                await one.client.submit(large)

            two.add_worker()
            await served(two)
            assert (await one.client.submit(large)).state is State.QUEUED


async def test_whether_others_have_workers_is_not_known_while_the_store_is_away() -> None:
    class Away(MemoryJournal):
        away = False

        async def engines(self) -> list[EngineRow]:
            if self.away:
                raise StoreUnavailable("the database is away")
            return await super().engines()

    journal = Away(shared=True)
    async with World(journal, families=[MeasuredToy()]).engine() as running:
        await served(running)
        journal.away = True

        with pytest.raises(StoreTrouble, match="the database is away"):
            await running.client.submit(request(guidance=4.0))
        journal.away = False


async def test_a_watcher_at_one_engine_sees_what_another_one_does() -> None:
    world, _ = shared_world()
    async with world.engine(name="one") as one, world.engine(name="two", workers=0) as two:
        await held(one, two)
        job = await two.client.submit(request(steps=20))
        seen = []
        with anyio.fail_after(20):
            async for told in two.client.watch(job.id):
                seen += told

        assert [each.position for each in seen] == [each.position for each in await one.client.events(job.id)]
        assert seen[-1].type == "job_completed"
        assert await owners(one, job.id) == ["one"]  # the other has no worker for it


async def test_a_job_of_one_engine_is_cancelled_at_another() -> None:
    world, _ = shared_world()
    async with world.engine(name="one") as one, world.engine(name="two", workers=0) as two:
        await held(one, two)
        job = await one.client.submit(request(steps=2000))
        await one.until(lambda: len(one.workers[0].ran) > 5)

        await two.client.cancel(job.id)

        assert (await two.client.job(job.id)).state is State.CANCELLED
        await one.until(lambda: not one.engine.ledger.actors)
        await assert_unharmed(one)


async def test_an_engine_that_was_overtaken_does_not_decide_on_what_it_remembers() -> None:
    world, _ = shared_world()
    async with world.engine(name="one") as one, world.engine(name="two", workers=0) as two:
        await held(one, two)
        one.workers[0].gate = gate = anyio.Event()
        job = await one.client.submit(request())
        await one.until(lambda: bool(one.workers[0].ran))
        await two.client.verbs.pause(job.id)

        resumed = await one.client.verbs.resume(job.id)

        assert resumed.outcome is Outcome.DONE
        gate.set()
        assert (await two.ended(job.id)).state is State.COMPLETED


def test_shares_are_even_and_only_those_of_a_dead_engine_move() -> None:
    jobs = [JobRow(f"job-{n}", "queued", "toy", 0, 0.0, 0.0, open=True) for n in range(900)]
    three = [EngineRow(name, "", ("toy",), 5.0) for name in ("a", "b", "c")]

    before = {job.id: [e.name for e in three if ours(job, e.name, three)] for job in jobs}
    after = {job.id: [e.name for e in three[:2] if ours(job, e.name, three[:2])] for job in jobs}

    assert all(len(names) == 1 for names in before.values())
    assert all(240 < count < 360 for count in Counter(names[0] for names in before.values()).values())
    assert all(after[job] == names for job, names in before.items() if names != ["c"])


def test_a_job_is_for_an_engine_that_has_workers_for_it() -> None:
    job = JobRow("job", "queued", "toy", 0, 0.0, 0.0, open=True)
    idle, able, dead = (
        EngineRow("a", "", (), 5.0),
        EngineRow("b", "", ("toy",), 5.0),
        EngineRow("c", "", ("toy",), -1.0),
    )

    assert [engine.name for engine in (idle, able, dead) if ours(job, engine.name, [idle, able, dead])] == ["b"]
    assert ours(job, "a", [idle])


def test_an_engine_is_able_to_run_a_job_by_its_card_and_weights_and_not_by_a_name() -> None:
    mine, other = registry.identity(toy.FAMILY), registry.identity(toy.ToyFamily(weights="other"))
    exact, old = EngineRow("new", "", tuple(offers([mine])), 5.0), EngineRow("old", "", ("toy",), 5.0)

    assert runs(exact, mine)
    assert not runs(exact, other)
    assert runs(old, mine)  # of a release that told names only
    assert runs(old, other)
    assert not runs(EngineRow("idle", "", (), 5.0), mine)


async def test_a_job_is_sent_to_no_engine_with_another_card_or_other_weights() -> None:
    world, _ = shared_world()
    async with world.engine(name="one") as one:
        await held(one)
        one.workers[0].gate = gate = anyio.Event()
        job = await one.client.submit(request())
        await one.until(lambda: bool(one.workers[0].ran))
        world.families = (toy.ToyFamily(weights="other"),)
        async with world.engine(name="two") as two:
            await served(two)
            with pytest.raises(NoSuchPlace, match="engine 'two' has no workers for the card and weights of 'toy' now"):
                await one.client.verbs.migrate(job.id, engine="two")
            gate.set()

            assert (await one.ended(job.id)).state is State.COMPLETED
            assert await owners(one, job.id) == ["one"]


@pytest.mark.parametrize("state", [State.QUEUED, State.CANCELLING])
async def test_a_job_that_was_sent_to_an_engine_that_cannot_run_it_is_not_stranded_there(state: State) -> None:
    world, clock = shared_world()
    async with world.engine(name="one") as one:
        await held(one)
        await world.journal.hold_lease("two", ttl_s=1e6, models=offers([registry.identity(toy.FAMILY)]))
        one.workers[0].hold_at = 2
        job = await one.client.submit(request())
        await one.until(lambda: one.workers[0].gate is not None)
        await one.client.verbs.pause(job.id)
        one.workers[0].open()
        await one.until(lambda: not one.engine.ledger.actors)
        await one.client.verbs.migrate(job.id, engine="two")
        await resumed_for(world, job.id, state)
        world.families = (toy.ToyFamily(weights="other"),)  # it has started again, with other weights
        async with world.engine(name="two") as two:
            await served(two)
            await two.engine.reconcile()
            clock.advance(1.0)
            await one.engine.reconcile()
            ended = await one.ended(job.id)

    assert ended.state is (State.COMPLETED if state is State.QUEUED else State.CANCELLED)
    assert "two" not in await owners(one, job.id)


async def resumed_for(world: World, job: str, state: State) -> None:
    """As its new owner would write it, which is alive and does nothing yet."""
    loaded = await world.journal.load(stream(job))
    assert loaded is not None
    fact = JobResumed() if state is State.QUEUED else CancelRequested(reason="")
    after = replace(restore(loaded), job=fold(restore(loaded).job, fact))
    await world.journal.append(
        Append(
            stream=stream(job),
            expected=loaded.version,
            epoch=loaded.epoch,
            at=0.0,
            events=(encode(fact),),
            checkpoint=saved_body(after),
            row=row(after.job, 0.0),
        )
    )


async def test_an_engine_that_lost_its_workers_gives_jobs_only_to_one_that_can_run_them() -> None:
    world, clock = shared_world()
    async with world.engine(name="one", workers=0) as one:
        await held(one)
        job = await one.client.submit(request())
        await one.until(lambda: bool(one.engine.ledger.actors))
        world.families = (toy.ToyFamily(weights="other"),)
        async with world.engine(name="two") as two:
            await served(two)
            for _ in range(3):
                await one.engine.reconcile()
                clock.advance(1.0)

            assert job.id in one.engine.ledger.actors
            assert await owners(one, job.id) == ["one"]


async def served(running: Running) -> None:
    """Its lease says that it has a worker."""
    await held(running)
    await running.until(lambda: bool(running.engine.fleet.seats))
    await running.engine.renew()


class Unreachable:
    """A journal that takes no lease."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def hold_lease(self, engine: str, *, ttl_s: float, url: str = "", models: Sequence[str] = ()) -> None:
        raise StoreUnavailable("the database is away")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


async def alone(asked: Any) -> Any:
    async with World().engine() as running:
        job = await running.ended((await running.client.submit(asked)).id)
        return digests(await running.client.checkpoints(job.id))
