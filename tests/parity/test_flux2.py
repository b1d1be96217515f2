"""Flux 2 klein against diffusers' Flux2KleinPipeline: equal bits at every step, through the real engine."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from cards.errors import InvalidRequest
from cards.family import Family
from cards.request import GenerationRequest
from tests.parity import tiny_flux2
from tests.parity.reference import Outcome, digest, run
from tests.parity.reference import family as opened
from tests.parity.resuming import run_resumed
from tests.sim import World

PRECISIONS = ("float32", "bfloat16")
REQUEST: dict[str, Any] = {
    "prompt": "a red cat & a dog",
    "negative_prompt": "blurry",
    "seed": 3,
    "steps": 4,
    "guidance": 3.0,
    "size": "48x32",
}


@cache
def family(precision: str = "float32", distilled: bool = False) -> Family:
    return opened(tiny_flux2.flux2(distilled), precision)


@cache
def pipeline(precision: str, distilled: bool = False) -> Any:
    from diffusers import Flux2KleinPipeline

    made = Flux2KleinPipeline.from_pretrained(tiny_flux2.flux2(distilled), dtype=getattr(torch, precision))
    made.set_progress_bar_config(disable=True)
    return made


def reference(precision: str, distilled: bool = False, **changes: Any) -> tuple[list[str], str]:
    """The digests of the latents after each step, and of the picture's pixels."""
    request = REQUEST | changes
    width, height = map(int, request["size"].split("x"))
    pipe = pipeline(precision, distilled)
    with torch.no_grad():  # the pipeline has no negative prompt of its own, and takes the encoded one
        negative, _ = pipe.encode_prompt(request["negative_prompt"])
    latents: list[str] = []

    def keep(_: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        latents.append(digest(tensors["latents"]))
        return {}

    [picture] = pipe(
        prompt=request["prompt"],
        negative_prompt_embeds=negative,
        height=height,
        width=width,
        num_inference_steps=request["steps"],
        guidance_scale=request["guidance"],
        generator=torch.Generator().manual_seed(request["seed"]),
        callback_on_step_end=keep,
    ).images
    return latents, digest(torch.from_numpy(np.array(picture)))


def found(made: Outcome) -> tuple[list[str], str]:
    latents = [tensors["latent"] for (node, _), tensors in sorted(made.steps.items()) if node == "denoise"]
    return latents, made.last("decode")["image"]


@pytest.mark.parametrize("precision", PRECISIONS)
async def test_every_latent_and_the_picture_are_the_pipelines(precision: str) -> None:
    made = await run(family(precision), REQUEST)

    assert found(made) == reference(precision)
    assert set(made.job.artifacts) == {"image.png"}


async def test_the_shift_follows_from_the_size_and_the_steps() -> None:
    changes: dict[str, Any] = {"size": "32x64", "steps": 3, "guidance": 1.0}

    assert found(await run(family(), REQUEST | changes)) == reference("float32", **changes)


async def test_a_distilled_model_has_no_guidance() -> None:
    distilled = family(distilled=True)
    request = REQUEST | {"guidance": 1.0}

    made = await run(distilled, request)

    assert found(made) == reference("float32", distilled=True, guidance=1.0)
    assert "negative" not in made.last("encode")
    assert [notice.field for notice in made.job.notices] == ["negative_prompt"]
    assert distilled.card.recipe.steps.default == 4


async def test_the_longest_prompt_and_the_longest_side_are_taken() -> None:
    """One token a letter, and seven of the chat around them. What a distilled model ignores may be of any length."""
    longest = REQUEST | {"prompt": "a" * 505, "size": "128x16"}
    for flux, more in ((family(), {}), (family(distilled=True), {"negative_prompt": "a" * 506, "guidance": 1.0})):
        async with World(families=(flux,)).engine(workers=0) as running:
            await running.client.submit(GenerationRequest(model="tiny", **longest | more))


async def test_a_job_taken_over_after_every_step_makes_the_same_bits() -> None:
    flux = family("bfloat16")

    assert (await run_resumed(flux, REQUEST)).steps == (await run(flux, REQUEST)).steps


@pytest.mark.parametrize(
    ("asked", "says", "distilled"),
    [
        ({"size": "50x32"}, "multiples of 4", False),
        ({"size": "4096x4096"}, "up to 4194304", False),
        ({"size": "small"}, "1024x1024", False),
        ({"size": "132x16"}, "up to 8 times the other", False),
        ({"prompt": "a" * 506}, "has 513 tokens; the text encoder takes up to 512", False),
        ({"prompt": "a" * 506, "guidance": 1.0}, "has 513 tokens; the text encoder takes up to 512", True),
        ({"negative_prompt": "a" * 506}, "has 513 tokens; the text encoder takes up to 512", False),
        ({"frames": 9}, "a picture, which has 1", False),
        ({"steps": 0}, "1 to 1000", False),
        ({"guidance": 50.0}, "1 to 20", False),
        ({"guidance": 3.0}, "step distillation", True),
    ],
)
async def test_what_flux_cannot_do_is_refused_with_what_it_can(
    asked: dict[str, Any], says: str, distilled: bool
) -> None:
    flux = family(distilled=distilled)
    async with World(families=(flux,)).engine(workers=0) as running:
        with pytest.raises(InvalidRequest, match=next(iter(asked))) as refused:
            await running.client.submit(GenerationRequest(model="tiny", **REQUEST | asked))
    assert says in str(refused.value)
