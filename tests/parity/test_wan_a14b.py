"""Wan 2.2 A14B text to video, with two experts, against diffusers' WanPipeline: equal bits."""

from collections.abc import Iterator, Mapping
from functools import cache
from random import Random
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from cards.card import Experts
from cards.checkpoint import read
from cards.errors import BadCheckpoint
from cards.family import Components
from cards.loop import LoopContext
from cards.request import GenerationRequest, resolve
from cards.wan.card import video
from cards.wire import WorkPlan
from tests.parity import tiny, tiny_wan
from tests.parity.reference import Outcome, digest, family, images, run
from tests.parity.resuming import run_resumed

PRECISIONS = ("float32", "bfloat16")
SCHEDULERS = ("unipc", "euler")
HIGH_NOISE, LOW_NOISE = 4, 2
REQUEST: dict[str, Any] = {
    "prompt": "a red cat",
    "negative_prompt": "blurry",
    "seed": 3,
    "steps": HIGH_NOISE + LOW_NOISE,
    "guidance": 4.5,
    "size": "32x16",
    "frames": 5,
}


@cache
def pipeline(scheduler: str, precision: str) -> Any:
    from diffusers import WanPipeline

    made = WanPipeline.from_pretrained(tiny_wan.experts(scheduler), dtype=getattr(torch, precision))
    made.set_progress_bar_config(disable=True)
    return made


def reference(scheduler: str, precision: str, output: str = "latent", **changes: Any) -> tuple[Any, Tensor]:
    """What the pipeline returns, and its last latent."""
    request = REQUEST | changes
    latents: list[Tensor] = []

    def keep(pipeline: Any, step: int, time: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        latents.append(tensors["latents"])
        return tensors

    returned = pipeline(scheduler, precision)(
        prompt=request["prompt"],
        negative_prompt=request["negative_prompt"],
        height=16,
        width=32,
        num_frames=request["frames"],
        num_inference_steps=request["steps"],
        guidance_scale=request["guidance"],
        guidance_scale_2=3.0,
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
    made = await run(family(tiny_wan.experts(scheduler), precision), REQUEST)

    [clip], latent = reference(scheduler, precision, "pil")
    assert made.last("denoise")["latent"] == digest(latent)
    assert frames_of(made) == [digest(part.clone()) for part in images(clip).split([1, 4])]
    assert (await run_resumed(family(tiny_wan.experts(scheduler), precision), REQUEST)).steps == made.steps


async def test_without_guidance_neither_expert_is_guided() -> None:
    made = await run(family(tiny_wan.experts(), "float32"), REQUEST | {"guidance": 1.0})

    assert made.last("denoise")["latent"] == digest(reference("unipc", "float32", guidance=1.0)[1])


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


def test_a_step_asks_for_its_expert_only() -> None:
    opened = family(tiny_wan.experts("euler"), "float32")
    components, bodies = opened.load("cpu"), opened.bodies()
    loop = opened.loops["wan.euler.cfg2/1"]
    resolved = resolve(GenerationRequest(model="tiny", **REQUEST), opened.card, Random(0))
    state = loop.init(LoopContext(opened.card, resolved, "denoise"), {})
    reads = {
        "latent": torch.zeros(1, 16, 2, 2, 4),
        "text": torch.zeros(1, 512, 32),
        "negative": torch.zeros(1, 512, 32),
    }

    experts = []
    for step in range(state.steps):
        asked = Asked(components)
        plan = loop.next(replace(state, step=step))
        assert isinstance(plan, WorkPlan)
        velocity = bodies["denoise"](asked, plan, reads).tensors["velocity"]
        bodies["denoise.fold"](asked, plan, {**reads, "made/velocity": velocity})
        experts.append(asked.names & {"transformer", "transformer_2"})
    assert experts == [{"transformer"}] * HIGH_NOISE + [{"transformer_2"}] * LOW_NOISE


def test_a_boundary_needs_a_second_expert_and_no_card_expands_timesteps() -> None:
    whole = read(tiny_wan.experts())
    with pytest.raises(BadCheckpoint, match="WanPipeline needs transformer_2"):
        video("tiny", replace(read(tiny.wan()), settings=whole.settings), "float32", "unipc")
    with pytest.raises(BadCheckpoint, match="expand_timesteps"):
        video("tiny", replace(whole, settings={"expand_timesteps": True}), "float32", "unipc")


def test_the_second_expert_has_its_own_guidance_in_the_card() -> None:
    recipe = family(tiny_wan.experts(), "float32").card.recipe

    assert recipe.guidance.default == 4.0
    assert recipe.experts == Experts(boundary=0.875, guidance=3.0)
    assert recipe.assumes_loop == {"denoise": "wan.unipc.cfg2/1"}
    assert not family(tiny.wan(), "float32").card.recipe.experts
