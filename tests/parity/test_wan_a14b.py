"""Wan 2.2 A14B text to video, with two experts, against diffusers' WanPipeline: equal bits."""

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from cards.branches import alone
from cards.card import Experts
from cards.checkpoint import read
from cards.errors import BadCheckpoint
from cards.family import Components
from cards.loop import LoopContext
from cards.request import GenerationRequest, resolve
from cards.wan.card import video
from cards.wire import WorkPlan
from tests.parity import tiny, tiny_wan
from tests.parity.reference import expected, family, run
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


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
async def test_latents_and_frames_are_the_pipelines_also_when_resumed_after_every_step(
    scheduler: str, precision: str
) -> None:
    a14b = family(tiny_wan.experts(scheduler), precision)
    made = await run(a14b, REQUEST)

    pipelines = expected(a14b, made.job)
    assert made.of(pipelines) == pipelines
    assert {"denoise.latent@5", "denoise.latent", "decode.frames/1"} < pipelines.keys()
    assert (await run_resumed(a14b, REQUEST)).steps == made.steps


async def test_without_guidance_neither_expert_is_guided() -> None:
    a14b = family(tiny_wan.experts(), "float32")
    made = await run(a14b, REQUEST | {"guidance": 1.0})

    pipelines = expected(a14b, made.job)
    assert made.of(pipelines) == pipelines


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
        velocity = alone(asked, bodies["denoise"](asked, plan, reads)).tensors["velocity"]
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
