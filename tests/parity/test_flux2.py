"""Flux 2 klein against diffusers' Flux2KleinPipeline: equal bits at every step, through the real engine."""

from functools import cache
from typing import Any

import pytest

from cards.errors import InvalidRequest
from cards.family import Family
from cards.request import GenerationRequest
from tests.parity import tiny_flux2
from tests.parity.reference import expected, run
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


@pytest.mark.parametrize("precision", PRECISIONS)
async def test_every_latent_and_the_picture_are_the_pipelines(precision: str) -> None:
    made = await run(flux := family(precision), REQUEST)

    pipelines = expected(flux, made.job)
    assert made.of(pipelines) == pipelines
    assert pipelines.keys() == {*(f"denoise.latent@{step}" for step in range(4)), "denoise.latent", "decode.image"}
    assert set(made.job.artifacts) == {"image.png"}


async def test_the_shift_follows_from_the_size_and_the_steps() -> None:
    made = await run(flux := family(), REQUEST | {"size": "32x64", "steps": 3, "guidance": 1.0})

    pipelines = expected(flux, made.job)
    assert made.of(pipelines) == pipelines


@pytest.mark.parametrize("precision", PRECISIONS)
async def test_a_distilled_model_has_no_guidance(precision: str) -> None:
    distilled = family(precision, distilled=True)

    made = await run(distilled, REQUEST | {"guidance": 1.0})

    pipelines = expected(distilled, made.job)
    assert made.of(pipelines) == pipelines
    assert {"denoise.latent@3", "denoise.latent", "decode.image"} < pipelines.keys()
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
