"""Wan 2.1 image to video against diffusers' WanImageToVideoPipeline: equal bits. So for Wan 2.2."""

import io
from functools import cache
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image

from cards.checkpoint import read
from cards.errors import BadCheckpoint, InvalidCard, InvalidRequest
from cards.given import check_inputs, picture
from cards.wan.card import video
from tests.parity import tiny, tiny_wan
from tests.parity.reference import expected, family, run
from tests.parity.resuming import run_resumed

PRECISIONS = ("float32", "bfloat16")
SCHEDULERS = ("unipc", "euler")
REQUEST: dict[str, Any] = {
    "prompt": "a red  cat &amp; a dog",
    "negative_prompt": "blurry",
    "seed": 3,
    "steps": 4,
    "guidance": 4.0,
    "size": "32x16",
    "frames": 9,
}


@cache
def image(height: int = 40, width: int = 70) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def file(image: Image.Image) -> bytes:
    written = io.BytesIO()
    image.save(written, "PNG")
    return written.getvalue()


GIVEN = {"image": picture("image", file(image()))}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
async def test_latents_and_frames_are_the_pipelines_also_when_resumed_after_every_step(
    scheduler: str, precision: str
) -> None:
    i2v = family(tiny_wan.from_image(scheduler), precision)
    made = await run(i2v, REQUEST, given=GIVEN)

    pipelines = expected(i2v, made.job, GIVEN)
    assert made.of(pipelines) == pipelines
    assert {"denoise.latent@3", "denoise.latent", "decode.frames/2"} < pipelines.keys()
    assert (await run_resumed(i2v, REQUEST, GIVEN)).steps == made.steps


async def test_another_image_gives_another_clip_and_one_frame_is_possible() -> None:
    i2v = family(tiny_wan.from_image(), "float32")
    short = REQUEST | {"frames": 1, "guidance": 1.0}
    made = await run(i2v, short, given=GIVEN)
    other = await run(i2v, short, given={"image": picture("image", file(image(64, 32)))})

    pipelines = expected(i2v, made.job, GIVEN)
    assert made.of(pipelines) == pipelines
    assert other.last("denoise")["latent"] != pipelines["denoise.latent"]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
async def test_two_experts_may_start_from_an_image_that_no_encoder_sees(scheduler: str, precision: str) -> None:
    i2v = family(tiny_wan.experts_from_image(scheduler), precision)
    made = await run(i2v, REQUEST, given=GIVEN)

    assert i2v.card.recipe.assumes_loop == {"denoise": f"wan.i2v.{scheduler}.cfg2/1"}
    pipelines = expected(i2v, made.job, GIVEN)
    assert made.of(pipelines) == pipelines
    assert {"denoise.latent@3", "denoise.latent", "decode.frames/2"} < pipelines.keys()


def test_a_request_without_an_image_or_with_another_input_is_told_what_is_taken() -> None:
    for folder, given, field, message in (
        (tiny_wan.from_image(), {}, "image", r"is missing: tiny needs one \(image\)"),
        (
            tiny_wan.from_image(),
            GIVEN | {"video": GIVEN["image"]},
            "video",
            "tiny takes no such input; it takes: image, lora",
        ),
        (tiny.wan(), GIVEN, "image", "tiny takes no such input; it takes: lora"),
    ):
        with pytest.raises(InvalidRequest, match=message) as refused:
            check_inputs(given, family(folder, "float32").card)
        assert refused.value.field == field


def test_a_transformer_that_attends_to_clip_needs_it() -> None:
    whole = read(tiny_wan.from_image())
    blind = replace(whole, parts={name: part for name, part in whole.parts.items() if name != "image_encoder"})
    with pytest.raises(BadCheckpoint, match="WanImageToVideoPipeline needs image_encoder"):
        video("tiny", blind, "float32", "unipc")


@pytest.mark.parametrize("option", [{"loop": "causal"}, {"recipe": "dmd"}])
def test_what_starts_from_an_image_is_no_student(option: dict[str, str]) -> None:
    with pytest.raises(InvalidCard, match="starts from text"):
        family(tiny_wan.from_image(), "float32", **option)
