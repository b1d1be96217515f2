"""Wan 2.2 A14B text to video, with two experts, against diffusers' WanPipeline: equal bits."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from cards.checkpoint import read
from cards.errors import BadCheckpoint
from cards.family import Components, Family
from cards.wan.card import video
from tests.parity import tiny, tiny_wan
from tests.parity.reference import Outcome, digest, family, images, run
from tests.parity.resuming import run_resumed
from tests.sim import World

PRECISIONS = ("float32", "bfloat16")
SCHEDULERS = ("unipc", "euler")
HIGH_NOISE, LOW_NOISE = 4, 2
REQUEST: dict[str, Any] = {
    "prompt": "a red cat",
    "negative_prompt": "blurry",
    "seed": 3,
    "steps": HIGH_NOISE + LOW_NOISE,
    "guidance": 4.5,
    "size": "48x32",
    "frames": 5,
}


@cache
def pipeline(scheduler: str, precision: str) -> Any:
    from diffusers import WanPipeline

    made = WanPipeline.from_pretrained(tiny_wan.experts(scheduler), dtype=getattr(torch, precision))
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
        guidance_scale_2=3.0,
        generator=torch.Generator().manual_seed(request["seed"]),
        output_type=output,
    ).frames


def frames_of(outcome: Outcome) -> list[str]:
    return [tensors[f"frames/{step}"] for (node, step), tensors in sorted(outcome.steps.items()) if node == "decode"]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
async def test_latents_and_frames_are_the_pipelines_also_when_resumed_after_every_step(
    scheduler: str, precision: str
) -> None:
    made = await run(family(tiny_wan.experts(scheduler), precision), REQUEST)

    assert made.last("denoise")["latent"] == digest(reference(scheduler, precision, "latent"))
    [clip] = reference(scheduler, precision, "pil")
    assert frames_of(made) == [digest(part.clone()) for part in images(clip).split([1, 4])]
    assert (await run_resumed(family(tiny_wan.experts(scheduler), precision), REQUEST)).steps == made.steps


async def test_without_guidance_neither_expert_is_guided() -> None:
    made = await run(family(tiny_wan.experts(), "float32"), REQUEST | {"guidance": 1.0})

    assert made.last("denoise")["latent"] == digest(reference("unipc", "float32", "latent", guidance=1.0))


class Asked(Mapping[str, Any]):
    """Components that know which of them a step has asked for."""

    def __init__(self, components: Components) -> None:
        self._components = components
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return self._components[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._components)

    def __len__(self) -> int:
        return len(self._components)


class Watched:
    """A family whose workers load such components."""

    def __init__(self, inner: Family) -> None:
        self._inner = inner
        self.loaded: list[Asked] = []

    def load(self, device: str) -> Components:
        self.loaded.append(Asked(self._inner.load(device)))
        return self.loaded[-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


async def test_a_worker_loads_only_the_expert_of_its_steps() -> None:
    watched: Any = Watched(family(tiny_wan.experts(), "float32"))
    await run_resumed(watched, REQUEST)

    experts = [asked.names & {"transformer", "transformer_2"} for asked in watched.loaded]
    assert experts == [set(), *[{"transformer"}] * HIGH_NOISE, *[{"transformer_2"}] * LOW_NOISE, set(), set(), set()]
