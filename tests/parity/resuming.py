"""A job that is resumed after every step: each step is another engine's and another worker's."""

from collections.abc import Mapping
from typing import Any

import anyio

from cards.family import Family
from cards.given import Given
from cards.request import GenerationRequest
from engine.events import StepCompleted
from tests.parity.reference import Outcome, ended
from tests.sim import Running, World


async def run_resumed(
    family: Family, request: Mapping[str, Any], given: Mapping[str, Given] = {}, world: World | None = None
) -> Outcome:
    """What is handed on is the journal and the blobs. The modules are loaded anew each time."""
    world = world or World(families=(family,))
    async with world.engine(workers=0) as running:
        submitted = await running.client.submit(GenerationRequest(model=family.card.name, **request), given=given)
    after, engines = 0, 0
    while True:
        async with world.engine(workers=0) as running:
            running.add_worker(credits=1)
            after, engines = await _one_step(running, submitted.id, after), engines + 1
            if (await running.client.job(submitted.id)).terminal:
                outcome = await ended(running, submitted.id)
                assert engines == len(outcome.steps), "not every step was another engine's"
                return outcome


async def _one_step(running: Running, job_id: str, after: int) -> int:
    """The position of the event which says that a step is on disk. The worker is sent no other."""
    [worker] = running.workers
    worker.hold_at = 1
    await running.until(lambda: worker.gate is not None)
    del running.link.workers[worker.name]
    worker.open()
    with anyio.fail_after(60.0):
        async for told in running.client.watch(job_id, after=after):
            after = told[-1].position if told else after
            if any(isinstance(one.event, StepCompleted) for one in told):
                break
    return after
