"""The power goes out at every append of a job's life, before and after it reached the disk; the ending is the same."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from cards.request import RequestChanges
from engine.cancel import Outcome
from engine.check import check
from engine.client import Client
from engine.errors import NotAllowed
from engine.events import StepCompleted
from engine.job import State
from tests.failing_journals import Crash, CrashingJournal
from tests.sim import Running, World, digests, request

STEPS = 3
REQUEST = request("a count big=70000", steps=STEPS, preview_every=2)


async def run(running: Running) -> None:
    job = await running.client.submit(REQUEST, key="k")
    await running.ended(job.id)


async def crash(world: World, journal: CrashingJournal, life: Callable[[Running], Awaitable[None]]) -> None:
    """Live until the power goes out, and see that it was that and nothing else."""
    try:
        async with world.engine(journal=journal) as running:
            await life(running)
    except BaseExceptionGroup as group:
        _, other = group.split(Crash)
        assert other is None, other
    except Crash:
        pass
    assert journal.left <= 0, "there were not so many appends"


async def appends_of_a_whole_life() -> tuple[int, Any]:
    world = World()
    counting = CrashingJournal(world.journal, 10_000, durable=True)
    async with world.engine(journal=counting) as running:
        await run(running)
        return 10_000 - counting.left, await ending(running.client)


async def ending(client: Client) -> Any:
    """Everything that a caller can see of how it ended, without who did it and when."""
    [row] = await client.jobs()
    job = await client.job(row.id)
    return job.state, job.outputs, job.artifacts, digests(await client.checkpoints(row.id))


@pytest.mark.parametrize("durable", [False, True])
async def test_a_job_survives_a_crash_at_any_append(durable: bool) -> None:
    appends, unbroken = await appends_of_a_whole_life()
    assert appends > STEPS + 2

    for nth in range(1, appends + 1):
        world = World()
        await crash(world, CrashingJournal(world.journal, nth, durable=durable), run)
        async with world.engine() as running:
            await run(running)  # the caller did not hear back, and asks again with the same key
            assert await ending(running.client) == unbroken, f"append {nth} of {appends}"
            await assert_no_step_twice(running.client)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("nth", range(1, 6))
async def test_a_crash_while_cancelling_ends_in_one_terminal_state(durable: bool, nth: int) -> None:
    world = World()

    async def cancel(running: Running) -> None:
        job = await running.client.submit(REQUEST, key="k")
        await running.until(lambda: bool(running.workers[0].ran))
        await running.client.cancel(job.id)
        await running.ended(job.id)

    await crash(world, CrashingJournal(world.journal, nth, durable=durable), cancel)

    async with world.engine() as running:
        job = await running.client.submit(REQUEST, key="k")
        outcome = await running.client.cancel(job.id)
        job = await running.ended(job.id)

    assert job.state in (State.CANCELLED, State.COMPLETED)
    assert (job.state is State.CANCELLED) or outcome is Outcome.ALREADY_TERMINAL
    kinds = [event.type for event in await world.journal.read(f"job/{job.id}")]
    assert kinds.count("job_cancelled") + kinds.count("job_completed") == 1


@pytest.mark.parametrize("durable", [False, True])
async def test_a_job_that_is_paused_rewound_and_forked_survives_a_crash_at_any_append(durable: bool) -> None:
    changes = RequestChanges(prompt=f"{REQUEST.prompt} start=2")

    async def operate(running: Running) -> None:
        """Ask for everything again until it is so: whoever did not hear back does that."""
        job = await running.client.submit(REQUEST, key="k")
        if not job.terminal and job.reason == "" and job.attempt == 1:
            with suppress(NotAllowed):
                await running.client.verbs.pause(job.id, "why")
            await running.until(lambda: job.id not in running.engine.ledger.actors)
        if (await running.client.job(job.id)).state is State.PAUSED:
            await running.client.verbs.rewind(job.id, 0)
            await running.client.verbs.resume(job.id)
        await running.ended(job.id)
        fork = await running.client.fork(job.id, 2, changes, key="f")
        await running.ended(fork.id)

    async def endings(running: Running) -> Any:
        rows = sorted(row.id for row in await running.client.jobs())
        jobs = [await running.client.job(one) for one in rows]
        assert (await check(running.world.journal)).problems == ()
        return [(job.state, job.outputs, job.artifacts, await made(running, job.id)) for job in jobs]

    async def made(running: Running, job: str) -> Any:
        return digests(await running.client.checkpoints(job))

    async with World().engine() as running:
        await operate(running)
        unbroken = await endings(running)
    assert len(unbroken) == 2

    nth, reached = 0, True
    while reached:
        nth += 1
        world = World()
        journal = CrashingJournal(world.journal, nth, durable=durable)
        reached = await crashed(world, journal, operate)
        async with world.engine() as running:
            await operate(running)
            assert await endings(running) == unbroken, f"append {nth}"
    assert nth > STEPS + 8


async def crashed(world: World, journal: CrashingJournal, life: Callable[[Running], Awaitable[None]]) -> bool:
    """Whether the power went out in this life."""
    try:
        await crash(world, journal, life)
    except AssertionError:
        if journal.left > 0:
            return False
        raise
    return True


async def test_recovery_is_bounded_by_the_checkpoint_not_by_the_history() -> None:
    world = World()
    async with world.engine() as running:
        job = await running.client.submit(request(steps=200))
        await running.until(lambda: len(running.workers[0].ran) > 150)

    loaded = await world.journal.load(f"job/{job.id}")

    assert loaded is not None
    assert loaded.version > 100
    assert loaded.events == ()


async def assert_no_step_twice(client: Client) -> None:
    [row] = await client.jobs()
    steps = [
        (told.event.node, told.event.step)
        for told in await client.events(row.id)
        if isinstance(told.event, StepCompleted)
    ]
    assert len(steps) == len(set(steps)) == STEPS + 2
