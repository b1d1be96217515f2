"""A job that an engine and a worker of its own take every step of."""

from collections.abc import Mapping
from typing import Any

import anyio

from cards.family import Family
from cards.given import Given
from cards.request import GenerationRequest
from tests.parity.reference import Outcome, ended
from tests.sim import World


async def piecewise(family: Family, request: Mapping[str, Any], given: Mapping[str, Given] | None = None) -> Outcome:
    """All of them end without a word: the next ones know what is in the journal and the blobs, and nothing else."""
    world = World(families=(family,))
    asked = GenerationRequest(model=family.card.name, **request)
    async with world.engine(workers=0) as running:
        job_id = (await running.client.submit(asked, given=given or {})).id
    done = 0
    while True:
        async with world.engine(silent_s=60.0) as running:
            running.workers[0].hold_at = 2  # what follows the first step waits for ever
            while len(await running.client.checkpoints(job_id)) == done:
                if (await running.client.job(job_id)).terminal:
                    return await ended(running, job_id)
                await anyio.sleep(0.01)
            done += 1
