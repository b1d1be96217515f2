"""Wan 2.1 text to video against diffusers' WanPipeline: equal bits, through the real engine and its store."""

from itertools import pairwise
from typing import Any

import pytest

from cards.errors import InvalidRequest
from cards.request import GenerationRequest
from cards.wan.forward import weight_of
from tests.parity import tiny
from tests.parity.reference import ended, expected, family, run
from tests.parity.resuming import run_resumed
from tests.sim import World

PRECISIONS = ("float32", "bfloat16")
REQUEST: dict[str, Any] = {
    "prompt": "a red  cat &amp; a dog",
    "negative_prompt": "blurry",
    "seed": 3,
    "steps": 6,
    "guidance": 4.0,
    "size": "48x32",
    "frames": 9,
}
FRAMES = tuple(f"decode.frames/{index}" for index in range(3))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("scheduler", ["unipc", "euler"])
async def test_latents_and_frames_are_the_pipelines(scheduler: str, precision: str) -> None:
    wan = family(tiny.wan(scheduler), precision)
    made = await run(wan, REQUEST)

    pipelines = expected(wan, made.job)
    assert made.of(pipelines) == pipelines
    assert pipelines.keys() == {*(f"denoise.latent@{step}" for step in range(6)), "denoise.latent", *FRAMES}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_weight_that_is_looked_at_has_the_type_and_the_place_of_its_module(precision: str) -> None:
    transformer = family(tiny.wan(), precision).load("cpu")["transformer"]
    weight = weight_of(transformer)

    assert (weight.dtype, weight.device) == (transformer.dtype, transformer.device)


async def test_without_guidance_there_is_one_forward_as_in_the_pipeline() -> None:
    wan = family(tiny.wan(), "float32")
    made = await run(wan, REQUEST | {"guidance": 1.0})

    pipelines = expected(wan, made.job)
    assert made.of(pipelines) == pipelines


@pytest.mark.parametrize(("scheduler", "precision"), [("unipc", "bfloat16"), ("euler", "float32")])
async def test_a_job_taken_over_after_every_step_makes_the_same_bits(scheduler: str, precision: str) -> None:
    wan = family(tiny.wan(scheduler), precision)

    assert (await run_resumed(wan, REQUEST)).steps == (await run(wan, REQUEST)).steps


async def test_jobs_that_take_turns_make_the_bits_of_those_alone() -> None:
    wan, other = family(tiny.wan(), "float32"), family(tiny.wan("euler"), "float32", name="other")
    requests = [REQUEST | {"seed": seed, "steps": 4 + seed, "guidance": 1.0 + 2 * seed} for seed in range(3)]
    alone = [(await run(one, request)).steps for request in requests for one in (wan, other)]

    async with World(families=(wan, other)).engine(policy="round_robin") as running:
        jobs = [
            await running.client.submit(GenerationRequest(model=one.card.name, **request))
            for request in requests
            for one in (wan, other)
        ]
        together = [(await ended(running, job.id)).steps for job in jobs]
        order = [unit.id.job for unit in running.workers[0].ran]

    assert together == alone
    assert len([1 for one, following in pairwise(order) if one != following]) > len(jobs), "they took turns"


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"size": "50x32"}, "multiples of 16"),
        ({"size": "4096x4096"}, "up to 921600"),
        ({"size": "small"}, "832x480"),
        ({"frames": 10}, "one more than a multiple of 4, from 1 to 81"),
        ({"steps": 0}, "1 to 1000"),
        ({"guidance": 50.0}, "1 to 20"),
        ({"size": "528x16"}, "up to 512 each"),
    ],
)
async def test_what_wan_cannot_do_is_refused_with_what_it_can(asked: dict[str, Any], says: str) -> None:
    wan = family(tiny.wan(), "float32")
    async with World(families=(wan,)).engine(workers=0) as running:
        with pytest.raises(InvalidRequest, match=next(iter(asked))) as refused:
            await running.client.submit(GenerationRequest(model="tiny", **REQUEST | asked))
    assert says in str(refused.value)
