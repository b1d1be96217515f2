"""What people may do to jobs, by name, and jobs in the states that they do it in."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio.lowlevel

from engine.client import Client
from engine.job import Job, State
from engine.operate import Operated
from tests import toy
from tests.sim import Running, World, digests, request

STEPS = 4
ALL = STEPS + 2
"""Steps of the whole program."""

Verb = Callable[[Client, str], Awaitable[Operated]]

VERBS: dict[str, Verb] = {
    "pause": lambda client, job: client.verbs.pause(job, "why"),
    "resume": lambda client, job: client.verbs.resume(job),
    "retry": lambda client, job: client.verbs.retry(job),
    "terminate": lambda client, job: client.verbs.terminate(job),
    "quarantine": lambda client, job: client.verbs.quarantine(job, "why"),
    "release": lambda client, job: client.verbs.lift(job),
    "rewind": lambda client, job: client.verbs.rewind(job, 0),
}


async def whole() -> Any:
    """How a job ends that nobody touches."""
    async with World().engine() as running:
        return await ending(running, (await running.client.submit(request(steps=STEPS))).id)


async def ending(running: Running, job_id: str) -> Any:
    job = await running.ended(job_id)
    return job.state, job.outputs, job.artifacts, digests(await running.client.checkpoints(job_id))


async def in_state(world: World, state: State) -> str:
    """A job in this state, with nobody at it."""
    if state in (State.COMPLETED, State.FAILED):
        async with world.engine() as running:
            prompt = "a count fail=2" if state is State.FAILED else "a count"
            return (await running.ended((await running.client.submit(request(prompt, steps=STEPS))).id)).id
    async with world.engine(workers=0, max_active=0) as running:
        job = await running.client.submit(request(steps=STEPS))
        match state:
            case State.PAUSED:
                await running.client.verbs.pause(job.id)
            case State.QUARANTINED:
                await running.client.verbs.quarantine(job.id)
            case State.CANCELLED:
                await running.client.cancel(job.id)
        return job.id


async def kinds(running: Running, job: str) -> list[str]:
    return [told.type for told in await running.client.events(job)]


async def held(running: Running, units: int, **fields: Any) -> Job:
    """A job whose worker holds on to the answer of its `units`-th step; all before are on disk."""
    [worker] = running.workers
    worker.hold_at = units or None
    job = await running.client.submit(request(steps=STEPS, **fields))
    await running.until(lambda: len(worker.ran) >= units and running.engine.results.steps >= units - 1)
    await running.engine.ledger.settled()
    return job


@asynccontextmanager
async def near_its_end(turns: int) -> AsyncIterator[tuple[Running, Job]]:
    """A job so many turns of the event loop after a worker has taken its last unit."""
    async with World().engine() as running:
        job = await running.client.submit(request(steps=1))
        while len(running.workers[0].ran) < 3:
            await anyio.lowlevel.checkpoint()
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        yield running, job


class Flaky(toy.ToyFamily):
    """Fails at one step until it is mended."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = True

    def bodies(self) -> Any:
        def count(components: Any, plan: Any, reads: Any) -> Any:
            if self.broken and plan.step == 2:
                raise ValueError("out of luck")
            return toy.FAMILY.bodies()["count"](components, plan, reads)

        return {**toy.FAMILY.bodies(), "count": count}
