"""What may be forgotten, and what must not: bytes that a job, a fork or an artifact needs stay, whatever is swept."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.check import check
from engine.collect import Collected, Retention, collect, purge
from engine.errors import BlobsHeld, BlobsShared, CannotCollect, NoSuchStep, TensorsGone
from engine.job import State
from store.blobs import MemoryBlobs, holds
from store.memory import MemoryJournal
from tests.sim import Running, SimClock, World, assert_unharmed, digests, request

BIG = "a count big=70000"


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


def world_of(clock: SimClock) -> World:
    """With bytes that grow old as the clock is moved."""
    world = World(MemoryJournal(clock.monotonic), clock=clock)
    world.blobs = MemoryBlobs(clock.monotonic)
    return world


async def swept(
    world: World,
    clock: SimClock,
    *,
    dry_run: bool = False,
    take_over: bool = False,
    after_s: float = 4_000,
    **retention: Any,
) -> Collected:
    """With all that is there older than the grace."""
    clock.advance(after_s)
    registry = {family.card.name: family for family in world.families}
    return await collect(
        world.journal,
        world.blobs,
        registry,
        Retention(**retention),
        now=clock.now(),
        dry_run=dry_run,
        take_over=take_over,
    )


async def done(running: Running, prompt: str = BIG, **fields: Any) -> str:
    return (await running.ended((await running.client.submit(request(prompt, **fields))).id)).id


async def stored(world: World) -> int:
    return len(list(world.blobs.listing(0.0)))


async def test_of_a_finished_job_the_last_steps_and_every_so_many_stay_for_a_while(clock: SimClock) -> None:
    world = world_of(clock)
    async with world.engine() as running:
        job = await done(running, steps=20)
        before = await running.client.checkpoints(job)

        await swept(world, clock, steps_last=2, steps_every=8)

        assert digests(await running.client.checkpoints(job)) == digests(before), "digests stay"
        with pytest.raises(TensorsGone, match="8"):
            await running.client.fork(job, 12)
        for step in (0, 8, 16, 21, 22):
            assert (await running.ended((await running.client.fork(job, step)).id)).state is State.COMPLETED


async def test_a_fork_has_the_artifacts_of_the_steps_that_it_shares(clock: SimClock) -> None:
    """A preview has one name, and each step that makes one makes another: the job itself has only the last."""
    world = world_of(clock)
    async with world.engine() as running:
        job = await done(running, steps=20, preview_every=2)

        await swept(world, clock, steps_last=2, steps_every=8)

        forked = await running.client.fork(job, 8)
        assert forked.artifacts
        for name in forked.artifacts:
            assert (await running.client.artifact(forked.id, name))[1]


async def test_what_is_pinned_stays_for_as_long_as_its_job_and_needs_no_recomputation(clock: SimClock) -> None:
    world = world_of(clock)
    async with world.engine() as running:
        job = await done(running, steps=20)
        before = digests(await running.client.checkpoints(job))
        verbs = running.client.verbs
        assert (await verbs.pin(job, 7, "good")).outcome == (await verbs.pin(job, 13)).outcome == "done"
        assert (await verbs.pin(job, 7)).outcome == "unchanged"

        await swept(world, clock, steps_s=3_600)  # long after its end
        await swept(world, clock, steps_s=3_600)

        with pytest.raises(TensorsGone, match="the nearest are of 7 and 13"):
            await verbs.pin(job, 10)
        for step in (7, 13):
            ran = len(running.workers[0].ran)
            fork = await running.ended((await running.client.fork(job, step)).id)
            assert fork.pins == ()
            assert len(running.workers[0].ran) - ran == 22 - step
            assert digests(await running.client.checkpoints(fork.id)) == before
        assert (await running.client.job(job)).pins == (7, 13)


async def test_what_is_unpinned_goes_like_any_other_step(clock: SimClock) -> None:
    world = world_of(clock)
    async with world.engine() as running:
        job = await done(running, steps=20)
        for step in (7, 13):
            await running.client.verbs.pin(job, step)
        await running.client.verbs.unpin(job, 7)

        await swept(world, clock, steps_last=1, steps_every=0)

        with pytest.raises(TensorsGone, match="the nearest are of 1 and 13"):
            await running.client.fork(job, 7)
        await assert_unharmed(running)


async def test_a_job_is_pinned_while_it_runs_and_goes_on(clock: SimClock) -> None:
    world = world_of(clock)
    async with world.engine() as running:
        running.workers[0].hold_at = 8
        job = (await running.client.submit(request(BIG, steps=20))).id
        await running.until(lambda: running.workers[0].gate is not None)

        with pytest.raises(NoSuchStep, match="step: 9 is no step"):
            await running.client.verbs.pin(job, 9)
        await running.client.verbs.pin(job, 5)
        running.workers[0].open()
        assert (await running.ended(job)).pins == (5,)

        await swept(world, clock, steps_s=0)
        assert (await running.ended((await running.client.fork(job, 5)).id)).state is State.COMPLETED
        assert (await check(world.journal)).problems == ()


async def test_a_long_time_after_its_end_a_job_has_its_artifacts_and_digests(clock: SimClock) -> None:
    world = world_of(clock)
    async with world.engine() as running:
        job = await done(running, preview_every=2)
        artifacts = (await running.client.job(job)).artifacts

        await swept(world, clock, steps_s=3_600)

        assert await stored(world) == 0
        assert artifacts
        for name in artifacts:
            assert (await running.client.artifact(job, name))[1]
        with pytest.raises(TensorsGone):
            await running.client.fork(job, 3)
        await assert_unharmed(running)


async def test_nothing_is_taken_from_a_job_that_runs_or_waits(clock: SimClock) -> None:
    world = world_of(clock)
    async with world.engine() as running:
        running.workers[0].hold_at = 8
        job = (await running.client.submit(request(BIG, steps=12))).id
        await running.until(lambda: running.workers[0].gate is not None)
        await running.engine.ledger.settled()

        await swept(world, clock, steps_last=1, steps_every=0)

        running.workers[0].open()
        await running.engine.lose(running.workers[0].name, "gone")
        running.add_worker()
        assert (await running.ended(job)).state is State.COMPLETED


async def test_what_is_young_stays_whether_anyone_names_it_or_not(clock: SimClock) -> None:
    world = world_of(clock)
    young = world.blobs.put(b"about to be named" * 5_000)
    async with world.engine() as running:
        job = await done(running)

        registry = {family.card.name: family for family in world.families}
        await collect(world.journal, world.blobs, registry, Retention(steps_s=0), now=clock.now(), dry_run=False)

        assert world.blobs.has(young)
        assert (await running.client.fork(job, 3)).parent is not None


async def test_a_fork_of_bytes_that_are_about_to_go_keeps_them(clock: SimClock) -> None:
    world = world_of(clock)
    async with world.engine(workers=0) as idle:
        async with world.engine(name="other") as running:
            job = await done(running, steps=12)
        clock.advance(4_000)  # they could be swept any moment

        forked = await idle.client.fork(job, 7)
        registry = {family.card.name: family for family in world.families}
        kept = Retention(steps_last=1, steps_every=0)
        await collect(world.journal, world.blobs, registry, kept, now=clock.now(), dry_run=False)

    async with world.engine() as running:
        assert (await running.ended(forked.id)).state is State.COMPLETED


async def test_a_plan_says_what_a_run_then_does_and_does_nothing(clock: SimClock) -> None:
    world = world_of(clock)
    async with world.engine() as running:
        for _ in range(3):
            await done(running)
        before = await stored(world), await running.client.jobs()

        plan = await swept(world, clock, dry_run=True, steps_s=0, purge_over=1)
        assert (await stored(world), await running.client.jobs()) == before
        run = await swept(world, clock, steps_s=0, purge_over=1)

        assert plan == run
        assert len(run.purged) == 2
        assert run.stored.blobs > 0
        again = await swept(world, clock, steps_s=0, purge_over=1)
        assert (again.purged, again.inline.blobs, again.stored.blobs) == ((), 0, 0)


async def test_old_jobs_go_by_their_end_and_never_one_that_is_open(clock: SimClock) -> None:
    world = world_of(clock)
    async with world.engine() as running:
        old = await done(running)
        failed = await done(running, "a count fail=1")
        clock.advance(50_000)
        new = await done(running)
        paused = (await running.client.submit(request("a count sleep=0.01", steps=2_000))).id
        await running.client.verbs.pause(paused)

        done_with = await swept(world, clock, purge_s=10_000)

        assert set(done_with.purged) == {old, failed}
        assert {row.id for row in await running.client.jobs()} == {new, paused}
        assert await world.journal.load(f"job/{old}") is None


async def test_a_fork_needs_nothing_of_a_parent_that_is_forgotten(clock: SimClock) -> None:
    world = world_of(clock)
    async with world.engine() as running:
        parent = await done(running, steps=8)
        expected = digests(await running.client.checkpoints(parent))
        forked = await running.client.fork(parent, 5)
        await running.ended(forked.id)
        again = await running.client.fork(forked.id, 3)
        await running.client.verbs.pause(again.id)

        assert await purge(world.journal, parent)
        await swept(world, clock)

        await running.client.verbs.resume(again.id)
        assert (await running.ended(again.id)).state is State.COMPLETED
        assert digests(await running.client.checkpoints(again.id)) == expected


async def test_bytes_that_another_store_may_name_are_not_swept(clock: SimClock) -> None:
    """As after a restore, or an import, into a store that was given the same blobs."""
    one, two = world_of(clock), world_of(clock)
    two.blobs = one.blobs
    async with one.engine() as running:
        await done(running)
    await swept(one, clock)
    count = await stored(one)

    for world, other in ((two, one), (one, two)):  # who is refused has told that it is there
        for dry_run in (False, True):
            with pytest.raises(BlobsShared, match=f"{await other.journal.identity()}.*--take-over"):
                await swept(world, clock, steps_s=0, dry_run=dry_run)
    assert await stored(one) == count

    assert (await swept(two, clock, dry_run=True, take_over=True)).stored.blobs == count
    with pytest.raises(BlobsShared):
        await swept(two, clock)
    await swept(two, clock, take_over=True)
    await swept(two, clock)
    assert await stored(two) == 0


async def test_nothing_is_swept_while_a_backup_reads_or_was_killed_a_moment_ago(clock: SimClock) -> None:
    world = world_of(clock)
    async with world.engine() as running:
        await done(running)
    clock.advance(100_000)

    with holds.held(world.blobs, clock.now) as renew:
        for _ in range(3):
            with pytest.raises(BlobsHeld, match=r"if it was killed, in \d+ s"):
                await swept(world, clock, after_s=0, steps_s=0)
            clock.advance(400)
            renew()
        assert (await swept(world, clock, after_s=0, steps_s=0, dry_run=True)).stored.blobs > 0
    world.blobs.mark(f"hold-{clock.now() + 600:.0f}-of-a-killed-one")
    with pytest.raises(BlobsHeld):
        await swept(world, clock, after_s=599, steps_s=0)
    assert (await swept(world, clock, after_s=2, steps_s=0)).stored.blobs > 0
    assert [mark for mark in world.blobs.marks() if mark.startswith("hold")] == []


async def test_a_log_that_cannot_be_read_stops_the_collecting(clock: SimClock) -> None:
    world = world_of(clock)
    async with world.engine() as running:
        job = await done(running)
        count = await stored(world)
        event = world.journal._events[f"job/{job}"][3]  # type: ignore[attr-defined]
        object.__setattr__(event, "type", "no_such_event") if False else None
        world.journal._events[f"job/{job}"][3] = replace(event, type="no_such_event")  # type: ignore[attr-defined]

        with pytest.raises(CannotCollect, match=f"job {job}"):
            await swept(world, clock)
        assert await stored(world) == count


async def test_a_job_of_a_model_that_is_not_here_keeps_everything(clock: SimClock) -> None:
    world = world_of(clock)
    async with world.engine() as running:
        await done(running, steps=12)
    count = await stored(world)
    world.families = ()

    await swept(world, clock, steps_last=1, steps_every=0)

    assert await stored(world) == count


@given(last=st.integers(1, 5), every=st.integers(0, 5), steps=st.integers(0, 40))
def test_the_last_step_can_always_be_gone_on_from(last: int, every: int, steps: int) -> None:
    kept = [step for step in range(steps + 1) if Retention(steps_last=last, steps_every=every).keeps(step, steps)]

    assert steps in kept
    assert len(kept) >= min(last, steps + 1)
    assert len(kept) <= last + (steps // every + 1 if every else 0)
