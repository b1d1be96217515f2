"""A registered model that cannot be opened: its jobs wait and say why, and nobody makes more of them."""

import pytest

from cards.errors import UnusableModel
from engine.errors import Unrunnable
from engine.job import State
from engine.operate import Outcome
from tests import toy
from tests.sim import World, request

WHY = "/models/toy: is no directory; restore it"


async def test_its_jobs_wait_with_the_reason_and_go_on_once_it_is_back() -> None:
    world = World()
    async with world.engine(workers=0) as running:
        job = await running.client.submit(request())
    world.families, world.unusable = (), {"toy": WHY}
    async with world.engine(workers=0) as running:
        await running.until(lambda: running.client.held_up(job) is not None)

        assert running.client.held_up(job) == f"model 'toy' cannot be used: {WHY}"
        assert running.client.unusable() == {"toy": WHY}
        assert (await running.client.verbs.pause(job.id)).outcome is Outcome.DONE
        assert (await running.client.verbs.resume(job.id)).outcome is Outcome.DONE
    world.families, world.unusable = (toy.FAMILY,), {}
    async with world.engine() as running:
        assert (await running.ended(job.id)).state is State.COMPLETED


async def test_a_job_of_it_that_is_for_one_pool_says_first_that_it_cannot_be_used() -> None:
    world = World()
    async with world.engine(workers=0) as running:
        running.add_worker(pool="other")
        await running.until(lambda: bool(running.engine.fleet.seats))
        running.workers[0].frozen = True
        job = await running.client.submit(request())
        await running.client.verbs.migrate(job.id, pool="other")
        job = await running.client.job(job.id)
    world.families, world.unusable = (), {"toy": WHY}
    async with world.engine(workers=0) as running:
        await running.until(lambda: WHY in (running.client.held_up(job) or ""))


async def test_no_job_of_it_is_taken_and_none_forked() -> None:
    world = World()
    async with world.engine() as running:
        done = await running.ended((await running.client.submit(request())).id)
    world.families, world.unusable = (), {"toy": WHY}
    async with world.engine(workers=0) as running:
        with pytest.raises(UnusableModel, match=f"model 'toy' cannot be used: {WHY}"):
            await running.client.submit(request())
        with pytest.raises(Unrunnable, match=f"cannot go on here: model 'toy' cannot be used: {WHY}"):
            await running.client.fork(done.id, 0)
        assert not running.client.models()
