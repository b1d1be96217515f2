"""Cards on workers that serve some of their loops: the bits of one worker that serves them all."""

from collections.abc import Sequence
from typing import Any

import pytest

from cards.roles import role_of
from tests.parity import every_card
from tests.parity.reference import ended

ONE: Sequence[tuple[str, ...]] = ((),)
SPLIT = (("encoder",), ("denoiser",), ("decoder",))
MANY = (("encoder",), ("encoder",), ("denoiser",), ("denoiser",), ("decoder",))


@pytest.mark.parametrize("model", ["wan", "i2v"])
async def test_split_fleets_make_what_one_worker_makes(model: str) -> None:
    card = every_card.families()[model].card

    async def made(fleet: Sequence[tuple[str, ...]]) -> Any:
        async with every_card.world(names=[model]).engine(workers=0, silent_s=60.0) as running:
            for serves in fleet:
                running.add_worker(serves=serves)
            await running.until(lambda: len(running.engine.fleet.seats) == len(fleet))
            jobs = [await every_card.submit(running, model, seed=seed) for seed in range(2)]
            found = [await ended(running, job) for job in jobs]
            for worker in running.workers:
                roles = {role_of(card, unit.plan.loop) for unit in worker.ran} - {None}
                assert roles <= set(worker.serves or roles)
            return [(one.steps, one.job.artifacts) for one in found]

    assert await made(SPLIT) == await made(MANY) == await made(ONE)
