"""Jobs of a loop whose state is a fold, and what of it is stored."""

from typing import Any

import pytest
from msgspec import UNSET, UnsetType

from cards.family import Made
from engine.events import JobEvent
from engine.job import Job, State
from tests.folded import Folded, count_fold
from tests.sim import Running, World, digests, request

STEPS = 7
ALL = STEPS + 2
EVERY = 3
SMALL = "a count"
WIDE = 3000
LARGE = f"a count wide={WIDE}"
PROMPTS = pytest.mark.parametrize("prompt", [SMALL, LARGE, "a count adaptive=1"])


def world(snapshot_every: int | UnsetType = EVERY, **options: Any) -> World:
    return World(families=(Folded(snapshot_every, **options),))


async def submitted(running: Running, prompt: str = SMALL, **fields: Any) -> Job:
    return await running.client.submit(request(prompt, steps=STEPS, **fields))


async def finished(running: Running, prompt: str = SMALL, **fields: Any) -> Job:
    job = await running.ended((await submitted(running, prompt, **fields)).id)
    assert job.state is State.COMPLETED, job.failure
    return job


async def steps(running: Running, job: str) -> list[Any]:
    return digests(await running.client.checkpoints(job))


async def log(running: Running, job: str) -> list[JobEvent]:
    return [told.event for told in await running.client.events(job)]


async def unfolded(prompt: str = SMALL) -> list[Any]:
    """The same steps of a card whose states are all stored."""
    if prompt not in _unfolded:
        async with world(UNSET).engine() as running:
            _unfolded[prompt] = await steps(running, (await finished(running, prompt)).id)
    return _unfolded[prompt]


_unfolded: dict[str, list[Any]] = {}


async def held(running: Running, units: int, prompt: str = SMALL) -> str:
    """A job whose first worker holds on to the answer of its `units`-th step; all before are on disk."""
    running.workers[0].hold_at = units
    job = await submitted(running, prompt)
    await running.until(lambda: running.workers[0].gate is not None and running.engine.results.steps >= units - 1)
    await running.engine.ledger.settled()
    return job.id


def owed(units: int, every: int) -> int:
    """How many refolds the unit carries that a fresh worker gets first, if it is the job's `units`-th."""
    counted = units - 2
    return counted % every if 0 < counted < STEPS else 0


def other_fold(*arguments: Any) -> Made:
    made = count_fold(*arguments)
    return Made({**made.tensors, "newer": made.tensors["newer"] + 1e-7})
