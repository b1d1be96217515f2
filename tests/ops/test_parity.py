"""Parity as operators measure it, of every card: the command, a real worker process, and what it leaves in the log."""

import os
from pathlib import Path
from typing import Any

import anyio
import msgspec
import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from cards.errors import NoReference
from cards.model import Model
from engine.parity import ParityMeasured, measured
from ops import models
from ops.errors import OpsError
from ops.models import FILE
from ops.parity import measure
from ops.settings import Settings
from ops.whereabouts import Whereabouts, announced
from store.open import open_journal
from tests import toy
from tests.api.serving import app_of, served
from tests.ops.command import Engine
from tests.parity import tiny, tiny_flux2, tiny_ltx2, tiny_wan
from tests.sim import World

SMALL = ("--size", "32x16", "--frames", 5)
CLIP = (*SMALL, "--steps", 3)
SOUND = ("--size", "128x64", "--frames", 9)
PICTURE = ("--size", "48x32")
LATENTS = {f"denoise.latent@{step}" for step in range(3)} | {"denoise.latent"}
FRAMES = {"decode.frames/0", "decode.frames/1"}
SOUNDS = {"decode_video.frames", "decode_audio.waveform"}

CARDS: dict[str, tuple[tuple[object, ...], str, set[str]]] = {
    "shapes": (("--steps", 3), "training.shapes.sample", LATENTS | {f"decode.frames/{n}" for n in range(6)}),
    "wan": (CLIP, "diffusers.WanPipeline", LATENTS | FRAMES),
    "flow": (CLIP, "diffusers.WanPipeline at the noise levels of Wan's own", LATENTS | FRAMES),
    "cached": ((*CLIP, "--interceptor", "block_cache=0.1"), "diffusers.WanPipeline", LATENTS | FRAMES),
    "i2v": (CLIP, "diffusers.WanImageToVideoPipeline", LATENTS | FRAMES),
    "a14b": (CLIP, "diffusers.WanPipeline", LATENTS | FRAMES),
    "i2v-a14b": (CLIP, "diffusers.WanImageToVideoPipeline", LATENTS | FRAMES),
    "student": (SMALL, "a plain loop over diffusers.WanTransformer3DModel", LATENTS | FRAMES),
    "causal": (("--size", "32x16", "--frames", 21), "a plain loop after Self-Forcing's causal_inference.py",
               {f"rollout.{name}/{chunk}" for name in ("latent", "frames") for chunk in range(2)}),
    "ltx2": (("--size", "64x64", "--frames", 9, "--steps", 2), "diffusers.LTX2Pipeline", {"denoise.audio@1"} | SOUNDS),
    "ltx2.3": (SOUND, "diffusers.LTX2Pipeline, LTX2LatentUpsamplePipeline, LTX2Pipeline",
               {"base.audio", "upsample.latent", "refine.audio@2", "refine.latent"} | SOUNDS),
    "flux2": ((*PICTURE, "--steps", 3), "diffusers.Flux2KleinPipeline", LATENTS | {"decode.image"}),
    "flux2-distilled": (PICTURE, "diffusers.Flux2KleinPipeline", LATENTS | {"denoise.latent@3", "decode.image"}),
    "story": (CLIP, "diffusers.Flux2KleinPipeline, diffusers.WanImageToVideoPipeline",
              {"picture-decode.image", "clip-denoise.latent@2", "clip-decode.frames/1"}),
}  # fmt: skip
"""By name: what is asked for, the reference, and some of what is compared."""

ASKED = ("--prompt", "a red  cat &amp; a dog", "--negative-prompt", "blurry", "--seed", 3)


def registered() -> tuple[Model, ...]:
    half: Any = {"precision": "bfloat16"}
    return (
        Model(name="wan", folder=str(tiny.wan()), **half),
        Model(name="flow", folder=str(tiny.wan()), options={"solver": "flow_unipc"}),
        Model(name="cached", folder=str(tiny.wan()), options={"interceptor": "block_cache"}),
        Model(name="i2v", folder=str(tiny_wan.from_image())),
        Model(name="a14b", folder=str(tiny_wan.experts()), **half),
        Model(name="i2v-a14b", folder=str(tiny_wan.experts_from_image())),
        Model(name="student", folder=str(tiny.wan()), options={"recipe": "dmd"}, **half),
        Model(name="causal", folder=str(tiny.wan()), options={"loop": "causal"}, **half),
        Model(name="ltx2", folder=str(tiny_ltx2.ltx2("2.0")), options={"recipe": "guided"}),
        Model(name="ltx2.3", folder=str(tiny_ltx2.ltx2("2.3")), **half),
        Model(name="flux2", folder=str(tiny_flux2.flux2()), **half),
        Model(name="flux2-distilled", folder=str(tiny_flux2.flux2(distilled=True))),
        Model(name="story", folder="", options={"picture": "flux2-distilled", "clip": "i2v"}),
    )


@pytest.fixture
def engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Engine:
    (tmp_path / FILE).write_bytes(msgspec.json.encode(registered()))
    return Engine(tmp_path, capsys)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    file = tmp_path / "image.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 70, 3), dtype=np.uint8)).save(file)
    return file


def in_the_log(data: Path, name: str) -> list[ParityMeasured]:
    async def read() -> list[ParityMeasured]:
        async with open_journal(Settings(data=data).store_url) as journal:
            return await measured(journal, name)

    return anyio.run(read)


def test_every_card_is_measured_here(engine: Engine) -> None:
    assert models.families_of(Settings(data=engine.data)).keys() == CARDS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", CARDS)
def test_a_card_is_its_reference_and_the_rung_is_in_the_log_and_shown(name: str, engine: Engine, image: Path) -> None:
    asked, reference, some = CARDS[name]
    given = ("--image", image) if name.startswith("i2v") else ()

    ran = engine.models("parity", name, *ASKED, *asked, *given, "--json")

    assert ran.code == 0, ran.err
    assert {row["output"] for row in ran.json} >= some
    assert all(row["equal"] for row in ran.json)
    [found] = in_the_log(engine.data, name)
    assert (found.rung, found.equal, found.outputs.keys()) == ("C1", True, {row["output"] for row in ran.json})
    assert found.reference.startswith(reference)
    assert f"C1 with {found.reference} at " in engine.models("show", name).out
    shown = engine.models("show", name, "--json").json["measured"]
    assert (shown["rung"], shown["job"], shown["differ"]) == ("C1", found.job, [])


@pytest.mark.slow
def test_loras_are_a_part_of_what_is_measured(engine: Engine, tmp_path: Path) -> None:
    key = "transformer.blocks.0.attn1.to_q.lora_"
    halves = {f"{key}A.weight": torch.full((4, 32), 0.25), f"{key}B.weight": torch.full((32, 4), -0.5)}
    safetensors.torch.save_file(halves, tmp_path / "lora.safetensors")

    ran = engine.models("parity", "wan", *ASKED, *CLIP, "--lora", f"{tmp_path / 'lora.safetensors'}:0.5")

    assert ran.code == 0, ran.err
    [found] = in_the_log(engine.data, "wan")
    assert (found.rung, [one.strength for one in found.request.loras]) == ("C1", [0.5])


@pytest.mark.slow
def test_a_clip_that_goes_on_from_another_is_held_to_the_whole_one(engine: Engine) -> None:
    asked = ("causal", *ASKED, "--size", "32x16")
    assert engine.models("parity", *asked, "--frames", 9).code == 0
    [short] = in_the_log(engine.data, "causal")

    ran = engine.models("parity", *asked, "--frames", 21, "--continues", short.job)

    assert ran.code == 0, ran.err
    _, whole = in_the_log(engine.data, "causal")
    assert (whole.rung, whole.request.continues) == ("C1", short.job)
    assert whole.outputs.keys() == {f"rollout.{name}/{chunk}" for name in ("latent", "frames") for chunk in range(2)}


@pytest.mark.slow
def test_what_differs_is_named_logged_and_shown_without_a_rung(engine: Engine, image: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cards.wan.reference.TEXT_TOKENS", 16)  # a reference that reads less of the prompt
        ran = engine.models("parity", "wan", *ASKED, *CLIP)

    assert ran.code == 1
    assert "denoise.latent@0 and" in ran.err
    assert "more differ (job job_" in ran.err
    [found] = in_the_log(engine.data, "wan")
    assert (found.rung, found.equal) == ("", False)
    assert "not equal to diffusers.WanPipeline" in engine.models("show", "wan").out
    shown = engine.models("show", "wan", "--json").json["measured"]
    assert (shown["rung"], shown["differ"][0]) == (None, "denoise.latent@0")


def test_what_was_not_measured_has_no_rung(engine: Engine) -> None:
    assert "nothing yet: engine models parity measures it" in engine.models("show", "wan").out
    assert engine.models("show", "wan", "--json").json["measured"] is None


async def test_a_model_without_a_reference_says_so_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(NoReference, match="toy has no reference that runs here: its card names"):
        await measure(Settings(data=tmp_path, families=("tests.toy",)), toy.CARD.name, {"prompt": "a red circle"})
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("name", "words", "code", "told"),
    [
        ("nobody", (), 2, "no model named 'nobody'"),
        ("wan", ("--size", "33x16"), 2, "size: 33x16: width and height must be multiples of 16"),
        ("wan", ("--steps", 0), 2, "steps: 0 is outside"),
        ("i2v", CLIP, 2, "image: is missing"),
        ("i2v", ("--image", __file__), 2, "image: is no image that can be read"),
        ("wan", ("--lora", __file__), 2, "loras/0: is no safetensors file"),
        ("flow", ("--interceptor", "block_cache=0.1"), 2, "interceptors.block_cache: flow has none such enabled"),
        ("i2v", ("--image", "nowhere.png"), 2, "image: cannot read nowhere.png"),
        ("wan", ("--guidance", "nan"), 2, "guidance: nan is no number that a request can have"),
        ("wan", ("--lora", "nowhere"), 2, "lora: cannot read nowhere"),
    ],
)
def test_what_cannot_be_asked_for_is_told_in_one_line(
    engine: Engine, name: str, words: tuple[str, ...], code: int, told: str
) -> None:
    ran = engine.models("parity", name, *words)

    assert (ran.code, len(ran.err.splitlines())) == (code, 1)
    assert told in ran.err
    assert [file.name for file in engine.data.iterdir()] == [FILE], "no engine was started"


def test_a_workflow_with_a_stage_without_a_reference_says_so_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Model(name="story", folder="", options={"picture": "flux2", "clip": "fade"})
    (tmp_path / FILE).write_bytes(msgspec.json.encode((*registered()[-3:-2], story)))
    monkeypatch.setenv("KEYFRAME_FAMILIES", "tests.parity.fade")

    ran = Engine(tmp_path, capsys).models("parity", "story")

    assert (ran.code, len(ran.err.splitlines())) == (1, 1)
    assert "story has no reference that runs here: its clip, fade, has none" in ran.err
    assert [file.name for file in tmp_path.iterdir()] == [FILE]


async def test_an_engine_that_serves_the_folder_is_to_be_stopped_first(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path)
    async with World().engine(workers=0) as running, served(app_of(running)) as url:
        with announced(tmp_path, Whereabouts(os.getpid(), url, settings.store_name)):
            with pytest.raises(OpsError, match=f"the engine with pid {os.getpid()} serves .* at {url}: stop it first"):
                await measure(settings, "shapes", {"prompt": "a red circle"})
            assert [file.name for file in tmp_path.iterdir()] == ["engine.json"]
