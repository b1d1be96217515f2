"""A whole job: the real engine over a store on disk is killed on the way, the next one brings it to the same ending."""

from collections.abc import Sequence

import anyio

from engine.check import check as problems_of_jobs
from engine.events import StepCompleted
from store.blobs.open import open_blobs
from store.journal import Journal
from store.open import open_journal
from tests.crash.checker import opened, problems_after
from tests.crash.forked import result_of
from tests.crash.scenario import Place, Prepare, Scenario, Tell
from tests.sim import Running, World, digests, request

REQUEST = request("a count big=70000", steps=3, preview_every=2)


def a_job(prepare: Prepare) -> Scenario:
    import torch  # here, because it takes long and the other scenarios do without

    torch.set_num_threads(1)  # the threads of a pool do not come along when a process is forked
    unbroken = result_of(lambda: anyio.run(_unbroken), str)

    async def live(place: Place, tell: Tell) -> None:
        async with open_journal(place.journal) as journal, _world(journal, place).engine() as running:
            await _run(running, tell)

    async def check(place: Place, told: Sequence[str]) -> list[str]:
        async with opened(place) as journal:
            log = {f"event {event.position} {event.type}" for event in await journal.read_all()}
            problems = [f"lost {line}" for line in told if line not in log]
            async with _world(journal, place).engine() as running:
                await _run(running, lambda line: None)
                ending = await _ending(running)
            if ending != unbroken:
                problems.append(f"ended as {ending}")
            problems += (await problems_of_jobs(journal)).problems
        return problems + await problems_after(place)

    return Scenario(live, check, prepare, steady=False)


async def _unbroken() -> str:
    async with World().engine() as running:
        await _run(running, lambda line: None)
        return await _ending(running)


def _world(journal: Journal, place: Place) -> World:
    world = World(journal)
    world.blobs = open_blobs(place.blobs)
    return world


async def _run(running: Running, tell: Tell) -> None:
    """Ask for the job (the same one, if it is there), and tell of every event that its caller is told of."""
    job = await running.client.submit(REQUEST, key="first")
    async for events in running.client.watch(job.id):
        for told in events:
            tell(f"event {told.position} {told.type}")


async def _ending(running: Running) -> str:
    """All that a caller sees of how it ended, without who did it and when; and every step, as often as it was done."""
    [row] = await running.client.jobs()
    job = await running.client.job(row.id)
    events = [told.event for told in await running.client.events(row.id)]
    steps = [(event.node, event.step) for event in events if isinstance(event, StepCompleted)]
    contents = {name: (await running.client.artifact(row.id, name))[1] for name in job.artifacts}
    return repr((job.state, job.outputs, contents, steps, digests(await running.client.checkpoints(row.id))))
