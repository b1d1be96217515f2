"""Wan 2.1 text to video against diffusers' WanPipeline: equal bits, through the real engine and its store."""

from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch

from cards.errors import InvalidRequest
from cards.request import GenerationRequest
from tests.parity import tiny
from tests.parity.reference import Outcome, digest, ended, family, images, run
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


@cache
def pipeline(scheduler: str, precision: str) -> Any:
    from diffusers import WanPipeline

    made = WanPipeline.from_pretrained(tiny.wan(scheduler), dtype=getattr(torch, precision))
    made.set_progress_bar_config(disable=True)
    return made


def reference(scheduler: str, precision: str, output: str, **changes: Any) -> Any:
    request = REQUEST | changes
    return pipeline(scheduler, precision)(
        prompt=request["prompt"],
        negative_prompt=request["negative_prompt"],
        height=32,
        width=48,
        num_frames=request["frames"],
        num_inference_steps=request["steps"],
        guidance_scale=request["guidance"],
        generator=torch.Generator().manual_seed(request["seed"]),
        output_type=output,
    ).frames


def frames_of(outcome: Outcome) -> list[str]:
    return [tensors[f"frames/{step}"] for (node, step), tensors in sorted(outcome.steps.items()) if node == "decode"]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("scheduler", ["unipc", "euler"])
async def test_latents_and_frames_are_the_pipelines(scheduler: str, precision: str) -> None:
    made = await run(family(tiny.wan(scheduler), precision), REQUEST)

    assert made.last("denoise")["latent"] == digest(reference(scheduler, precision, "latent"))
    [clip] = reference(scheduler, precision, "pil")
    frames = images(clip)
    assert frames_of(made) == [digest(part.clone()) for part in frames.split([1, 4, 4])]


async def test_without_guidance_there_is_one_forward_as_in_the_pipeline() -> None:
    made = await run(family(tiny.wan(), "float32"), REQUEST | {"guidance": 1.0})

    assert made.last("denoise")["latent"] == digest(reference("unipc", "float32", "latent", guidance=1.0))


@pytest.mark.parametrize(("scheduler", "precision"), [("unipc", "bfloat16"), ("euler", "float32")])
async def test_a_job_taken_over_after_every_step_makes_the_same_bits(scheduler: str, precision: str) -> None:
    wan = family(tiny.wan(scheduler), precision)

    assert (await run_resumed(wan, REQUEST)).steps == (await run(wan, REQUEST)).steps


async def test_jobs_that_take_turns_make_the_bits_of_those_alone() -> None:
    wan, other = family(tiny.wan(), "float32"), family(tiny.wan("euler"), "float32", name="other")
    requests = [REQUEST | {"seed": seed, "steps": 4 + seed, "guidance": 1.0 + 2 * seed} for seed in range(3)]
    alone = [(await run(one, request)).steps for request in requests for one in (wan, other)]

    async with World(families=(wan, other)).engine() as running:
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
