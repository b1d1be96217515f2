"""Wan 2.1 text to video against diffusers' WanPipeline: equal bits, through the real engine and its store."""

from functools import cache
from typing import Any

import pytest
import torch

from tests.parity import tiny
from tests.parity.reference import Outcome, digest, family, images, run

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
