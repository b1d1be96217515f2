"""One job's failure is its own: what it had made stays, and jobs beside and after it make the bits of jobs alone."""

from collections.abc import Mapping
from typing import Any

import pytest

from cards.errors import InvalidRequest
from cards.family import Components, Made, StepBody
from cards.request import GenerationRequest
from cards.wire import WorkPlan
from engine.job import Job, State
from tests import toy
from tests.sim import Running, World, assert_unharmed, digests, request

WISHES = ["fail=2", "oom=2"]


async def outcome(running: Running, job: Job) -> Any:
    ended = await running.ended(job.id)
    assert ended.state is State.COMPLETED
    return ended.artifacts, digests(await running.client.checkpoints(job.id))


async def alone(asked: GenerationRequest, family: toy.ToyFamily = toy.FAMILY) -> Any:
    async with World(families=(family,)).engine() as running:
        return await outcome(running, await running.client.submit(asked))


@pytest.mark.parametrize("wish", WISHES)
async def test_jobs_beside_and_after_one_that_fails_make_the_bits_of_jobs_alone(wish: str) -> None:
    beside, after = request(seed=3, steps=6), request(seed=4, steps=2)
    async with World().engine() as running:
        neighbour = await running.client.submit(beside)
        failed = await running.ended((await running.client.submit(request(f"a count {wish}"))).id)
        following = await running.client.submit(after)

        assert failed.state is State.FAILED
        assert await outcome(running, neighbour) == await alone(beside)
        assert await outcome(running, following) == await alone(after)
        assert len(running.engine.fleet.seats) == 1
        await assert_unharmed(running)


@pytest.mark.parametrize("wish", WISHES)
async def test_what_a_job_had_made_before_it_failed_can_still_be_fetched(wish: str) -> None:
    async with World().engine() as running:
        job = await running.ended((await running.client.submit(request(f"a count {wish}", preview_every=1))).id)

        assert job.failure is not None
        assert (job.failure.node, job.failure.step, job.failure.attempt) == ("count", 2, 1)
        _, data = await running.client.artifact(job.id, "preview.txt")
        assert data == b"1"


async def test_nothing_is_held_of_two_hundred_jobs_that_failed() -> None:
    async with World().engine(workers=2) as running:
        jobs = [
            await running.client.submit(request(f"a count big=70000 {WISHES[n % 20 == 0]}", seed=n)) for n in range(200)
        ]

        assert {(await running.ended(job.id)).state for job in jobs} == {State.FAILED}
        await assert_unharmed(running)
        assert not running.engine.ledger.actors
        assert all(not seat.outstanding for seat in running.engine.fleet.seats.values())


@pytest.mark.parametrize(
    "bad",
    [
        {"steps": 0},
        {"steps": 10**9},
        {"guidance": float("nan")},
        {"prompt": ""},
        {"prompt": "a " * 1000},
        {"size": "31x33"},
        {"frames": -1},
        {"negative_prompt": "\x00"},
    ],
)
async def test_a_malformed_request_is_refused_before_any_worker_hears_of_it(bad: dict[str, Any]) -> None:
    fields = {"model": "toy", "prompt": "a count", "seed": 7} | bad
    async with World().engine() as running:
        with pytest.raises(InvalidRequest):
            await running.client.submit(GenerationRequest(**fields))

        assert not running.engine.ledger.actors
        assert running.workers[0].ran == []
        await assert_unharmed(running)


class Fragile(toy.ToyFamily):
    """Its first stage has no memory for some prompts."""

    def bodies(self) -> Mapping[str, StepBody]:
        def prepare(components: Components, plan: WorkPlan, reads: Mapping[str, Any]) -> Made:
            if "encoder=1" in str(plan.scalars["prompt"]):
                raise MemoryError("the encoder asked for too much")
            return bodies["prepare"](components, plan, reads)

        bodies = super().bodies()
        return {**bodies, "prepare": prepare}


async def test_an_encoder_that_runs_out_of_memory_fails_the_job_it_encodes_for_and_goes_on_with_the_next() -> None:
    async with World(families=(Fragile(),)).engine() as running:
        denoising = await running.client.submit(request(steps=12))
        await running.until(lambda: len(running.workers[0].ran) > 2)
        large = [await running.client.submit(request("a count encoder=1", seed=seed)) for seed in range(3)]
        small = await running.client.submit(request(seed=9))

        for job in large:
            failure = (await running.ended(job.id)).failure
            assert failure is not None
            assert (failure.kind, failure.node) == ("oom", "prepare")
        assert await outcome(running, denoising) == await alone(request(steps=12))
        assert await outcome(running, small) == await alone(request(seed=9))
        await assert_unharmed(running)
