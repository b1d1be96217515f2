"""Wan 2.1 image to video against diffusers' WanImageToVideoPipeline: equal bits. Of Wan 2.2's, the latents."""

import io
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from PIL import Image
from torch import Tensor

from cards.checkpoint import read
from cards.errors import BadCheckpoint, InvalidCard, InvalidRequest
from cards.given import check_inputs, picture
from cards.wan.card import video
from tests.parity import tiny, tiny_wan
from tests.parity.reference import Outcome, digest, family, images, run
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


@cache
def pipeline(folder: Path, precision: str) -> Any:
    from diffusers import WanImageToVideoPipeline

    made = WanImageToVideoPipeline.from_pretrained(folder, dtype=getattr(torch, precision))
    made.set_progress_bar_config(disable=True)
    return made


def reference(folder: Path, precision: str, output: str = "latent", **changes: Any) -> tuple[Any, Tensor]:
    """What the pipeline returns, and its last latent."""
    from diffusers import WanPipeline

    request = REQUEST | changes
    made = pipeline(folder, precision)
    # diffusers 0.42's image pipeline cleans prompts with ftfy also where it is not installed; else the two are copies
    text = WanPipeline(made.tokenizer, made.text_encoder, vae=None, scheduler=None)
    with torch.no_grad():  # with gradients, attention takes another path and gives other bits
        prompt, negative = text.encode_prompt(request["prompt"], request["negative_prompt"], max_sequence_length=512)
    latents: list[Tensor] = []

    def keep(pipeline: Any, step: int, time: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        latents.append(tensors["latents"])
        return tensors

    returned = made(
        image=image(),
        prompt_embeds=prompt,
        negative_prompt_embeds=negative,
        height=16,
        width=32,
        num_frames=request["frames"],
        num_inference_steps=request["steps"],
        guidance_scale=request["guidance"],
        guidance_scale_2=request.get("guidance_2"),
        generator=torch.Generator().manual_seed(request["seed"]),
        output_type=output,
        callback_on_step_end=keep,
    ).frames
    return returned, latents[-1]


def frames_of(outcome: Outcome) -> list[str]:
    return [tensors[f"frames/{step}"] for (node, step), tensors in sorted(outcome.steps.items()) if node == "decode"]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
async def test_latents_and_frames_are_the_pipelines_also_when_resumed_after_every_step(
    scheduler: str, precision: str
) -> None:
    folder = tiny_wan.from_image(scheduler)
    made = await run(family(folder, precision), REQUEST, given=GIVEN)

    [clip], latent = reference(folder, precision, "pil")
    assert made.last("denoise")["latent"] == digest(latent)
    assert frames_of(made) == [digest(part.clone()) for part in images(clip).split([1, 4, 4])]
    assert (await run_resumed(family(folder, precision), REQUEST, GIVEN)).steps == made.steps


async def test_another_image_gives_another_clip_and_one_frame_is_possible() -> None:
    opened = family(tiny_wan.from_image(), "float32")
    short = REQUEST | {"frames": 1, "guidance": 1.0}
    made = await run(opened, short, given=GIVEN)
    other = await run(opened, short, given={"image": picture("image", file(image(64, 32)))})

    _, latent = reference(tiny_wan.from_image(), "float32", frames=1, guidance=1.0)
    assert made.last("denoise")["latent"] == digest(latent)
    assert other.last("denoise")["latent"] != digest(latent)


@pytest.mark.parametrize("precision", PRECISIONS)
async def test_two_experts_may_start_from_an_image_that_no_encoder_sees(precision: str) -> None:
    folder = tiny_wan.experts_from_image()
    opened = family(folder, precision)
    made = await run(opened, REQUEST, given=GIVEN)

    assert opened.card.recipe.assumes_loop == {"denoise": "wan.i2v.unipc.cfg2/1"}
    assert made.last("denoise")["latent"] == digest(reference(folder, precision, guidance_2=3.5)[1])


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
