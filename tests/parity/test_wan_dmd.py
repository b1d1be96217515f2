"""Few-step students of Wan: against a plain loop over the transformer, refusals, and a checkpoint of their own."""

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from cards import sampling
from cards.errors import InvalidCard, InvalidRequest
from cards.request import GenerationRequest
from tests.parity import tiny
from tests.parity.reference import digest, family, run
from tests.parity.resuming import run_resumed
from tests.sim import World

REQUEST: dict[str, Any] = {"prompt": "a red cat", "seed": 3, "size": "48x32", "frames": 9}


@cache
def modules(precision: str) -> Any:
    from diffusers import WanPipeline

    return WanPipeline.from_pretrained(tiny.wan(), dtype=getattr(torch, precision))


def level(timestep: int, shift: float = 8.0) -> float:
    """The shift of Esser et al. 2024 on a grid of a thousand, in float32; that of the nearest timestep."""
    grid = np.arange(1, 1001, dtype=np.float32) / np.float32(1000)
    shifted = np.float32(shift) * grid / (1 + np.float32(shift - 1) * grid)
    return float(shifted[np.abs(shifted * 1000 - timestep).argmin()])


@torch.inference_mode()
def reference(precision: str, timesteps: tuple[int, ...] = (1000, 757, 522)) -> Tensor:
    """The student's sampler, written down once more: predict the data, noise it again."""
    pipeline = modules(precision)
    transformer = pipeline.transformer
    text, _ = pipeline.encode_prompt(REQUEST["prompt"], do_classifier_free_guidance=False, max_sequence_length=512)
    x = torch.randn(1, 16, 3, 4, 6, generator=torch.Generator().manual_seed(REQUEST["seed"]))
    for step, t in enumerate(timesteps):
        if step:
            seed = sampling.noise_seed(REQUEST["seed"], loop="denoise", step=step, purpose="noise")
            noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
            s = torch.tensor(level(t))
            x = (1 - s) * x + s * noise
        v = transformer(x.to(transformer.dtype), torch.tensor([t]), text.to(transformer.dtype)).sample
        x = (x.double() - level(t) * v.double()).float()
    return x


def student(precision: str = "float32") -> Any:
    return family(tiny.wan(), precision, recipe="dmd")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
async def test_latents_are_those_of_a_plain_loop_over_the_transformer(precision: str) -> None:
    made = await run(student(precision), REQUEST)

    assert [key for key in made.steps if key[0] == "denoise"] == [("denoise", step) for step in range(3)]
    assert made.last("denoise") == {"latent": digest(reference(precision))}


def test_the_levels_are_the_published_ones() -> None:
    assert [round(level(t), 3) for t in (1000, 757, 522)] == [1.0, 0.757, 0.522]


async def test_stopped_after_every_step_it_goes_on_as_if_nothing_had_been() -> None:
    model = student()

    assert (await run_resumed(model, REQUEST)).steps == (await run(model, REQUEST)).steps


@pytest.mark.parametrize(
    ("asked", "remedy"),
    [
        ({"steps": 50}, r"steps: 50 is outside what this card's recipe \(dmd\) allows: 3 to 3"),
        ({"guidance": 5.0}, r"guidance: 5.0 is outside what this card's recipe \(dmd\) allows: 1 to 1"),
        ({"size": "50x32"}, "multiples of 16"),
    ],
)
async def test_a_student_is_asked_for_nothing_else(asked: dict[str, Any], remedy: str) -> None:
    async with World(families=(model := student(),)).engine() as running:
        with pytest.raises(InvalidRequest, match=remedy):
            await running.client.submit(GenerationRequest(model=model.card.name, **REQUEST | asked))


async def test_a_negative_prompt_is_said_to_be_of_no_use() -> None:
    made = await run(student(), REQUEST | {"negative_prompt": "blurry"})

    [notice] = made.job.notices
    assert (notice.field, notice.code) == ("negative_prompt", "unused")
    assert made.steps == (await run(student(), REQUEST)).steps


def test_a_students_checkpoint_has_a_students_card(tmp_path: Path) -> None:
    folder = tmp_path / "fastwan"
    shutil.copytree(tiny.wan(), folder)
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps(index | {"_class_name": "WanDMDPipeline"}))

    assert family(folder, "float32").card == student().card
    with pytest.raises(InvalidCard, match=r"options\.recipe: 'base' is none of dmd"):
        family(folder, "float32", recipe="base")
    with pytest.raises(InvalidCard, match=r"options\.solver: there is none; there are: recipe"):
        family(folder, "float32", solver="unipc")


def test_a_students_weights_do_not_run_under_another_loop() -> None:
    card = student().card
    wrong = replace(card, loops=card.loops | {"denoise": replace(card.loops["denoise"], semantics="wan.unipc.cfg/1")})

    with pytest.raises(InvalidCard, match=r"recipe\.assumes_loop"):
        wrong.validate()
