"""Few-step students of Wan: against a plain loop over the transformer, refusals, and a checkpoint of their own."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cards.errors import InvalidCard, InvalidRequest
from cards.request import GenerationRequest
from cards.wan.dmd_reference import level
from tests.parity import tiny
from tests.parity.reference import expected, family, run
from tests.parity.resuming import run_resumed
from tests.sim import World

REQUEST: dict[str, Any] = {"prompt": "a red cat", "seed": 3, "size": "48x32", "frames": 9}


def student(precision: str = "float32") -> Any:
    return family(tiny.wan(), precision, recipe="dmd")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
async def test_latents_and_frames_are_those_of_a_plain_loop_over_the_transformer(precision: str) -> None:
    made = await run(model := student(precision), REQUEST)

    plain = expected(model, made.job)
    assert made.of(plain) == plain
    frames = (f"decode.frames/{index}" for index in range(3))
    assert plain.keys() == {*(f"denoise.latent@{step}" for step in range(3)), "denoise.latent", *frames}


def test_the_levels_are_the_published_ones() -> None:
    assert [round(level(t, shift=8.0), 3) for t in (1000, 757, 522)] == [1.0, 0.757, 0.522]


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
    assert (notice.field, notice.code) == ("negative_prompt", "ignored")
    assert made.steps == (await run(student(), REQUEST)).steps


async def test_a_students_checkpoint_has_a_students_card_and_reference(tmp_path: Path) -> None:
    folder = tmp_path / "fastwan"
    shutil.copytree(tiny.wan(), folder)
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps(index | {"_class_name": "WanDMDPipeline"}))

    made = await run(model := family(folder, "float32"), REQUEST)
    assert model.card == student().card
    assert expected(model, made.job) == expected(student(), made.job)
    with pytest.raises(InvalidCard, match=r"options\.recipe: 'base' is none of dmd"):
        family(folder, "float32", recipe="base")
    with pytest.raises(InvalidCard, match=r"options\.solver: there is none; there are: recipe"):
        family(folder, "float32", solver="unipc")


def test_a_students_weights_do_not_run_under_another_loop() -> None:
    card = student().card
    wrong = replace(card, loops=card.loops | {"denoise": replace(card.loops["denoise"], semantics="wan.unipc.cfg/1")})

    with pytest.raises(InvalidCard, match=r"recipe\.assumes_loop"):
        wrong.validate()
