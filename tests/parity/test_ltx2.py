"""LTX-2 and LTX-2.3 against diffusers' pipelines: equal bits of video and sound, through the real engine."""

import io
import random
import wave
from functools import cache
from typing import Any

import av
import pytest

from cards import media
from cards.card import from_json, to_json
from cards.errors import BadCheckpoint, InvalidRequest
from cards.family import Family
from cards.request import GenerationRequest, resolve
from tests.parity import tiny_ltx2
from tests.parity.reference import ended, expected, run
from tests.parity.reference import family as opened
from tests.parity.resuming import run_resumed
from tests.sim import World

VERSIONS = ("2.0", "2.3")
PRECISIONS = ("float32", "bfloat16")
REQUEST: dict[str, Any] = {
    "prompt": "a red  cat, purring",
    "negative_prompt": "blurry",
    "seed": 3,
    "size": "128x64",
    "frames": 9,
}
LATENTS = ("latent", "audio")
DECODED = {"decode_video.frames", "decode_audio.waveform"}
GUIDED = REQUEST | {"size": "64x64", "steps": 4, "guidance": 2.5}


@cache
def family(version: str, precision: str, recipe: str) -> Family:
    return opened(tiny_ltx2.ltx2(version), precision, recipe=recipe)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("version", VERSIONS)
async def test_two_distilled_stages_are_the_chain_of_three_pipelines(version: str, precision: str) -> None:
    made = await run(one := family(version, precision, "distilled"), REQUEST)

    pipelines = expected(one, made.job)
    assert made.of(pipelines) == pipelines
    stages = {"base": 8, "refine": 3}
    steps = {f"{stage}.{name}@{n}" for stage, count in stages.items() for name in LATENTS for n in range(count)}
    ends = {f"{stage}.{name}" for stage in (*stages, "upsample") for name in LATENTS}
    assert pipelines.keys() == steps | ends | DECODED


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("version", VERSIONS)
async def test_one_guided_stage_is_the_pipeline_with_all_its_forwards(version: str, precision: str) -> None:
    made = await run(one := family(version, precision, "guided"), GUIDED)

    pipelines = expected(one, made.job)
    assert made.of(pipelines) == pipelines
    steps = {f"denoise.{name}@{n}" for name in LATENTS for n in range(4)}
    assert pipelines.keys() == steps | {"denoise.latent", "denoise.audio"} | DECODED


@pytest.mark.parametrize(("recipe", "asked"), [("distilled", REQUEST), ("guided", GUIDED)])
async def test_resumed_after_every_step_a_job_ends_the_same(recipe: str, asked: dict[str, Any]) -> None:
    """Each time by another engine and another worker, which have only what was stored. In bf16 the layout matters."""
    one = family("2.3", "bfloat16", recipe)
    unbroken = await run(one, asked)

    broken = await run_resumed(one, asked)

    assert broken.steps == unbroken.steps
    assert broken.job.artifacts == unbroken.job.artifacts


async def test_a_clip_carries_its_sound_and_the_sound_lies_beside_it() -> None:
    one = family("2.0", "float32", "distilled")

    async with World(families=(one,)).engine() as running:
        submitted = await running.client.submit(GenerationRequest(model=one.card.name, **REQUEST))
        outcome = await ended(running, submitted.id)
        assert {*outcome.job.artifacts} == {*one.card.program.artifacts}
        _, clip = await running.client.artifact(submitted.id, "video.mp4")
        about, sound = await running.client.artifact(submitted.id, "audio.wav")

    assert about.media_type == "audio/wav"
    with wave.open(io.BytesIO(sound)) as read:
        assert (read.getframerate(), read.getsampwidth(), read.getnchannels()) == (16_000, 2, 2)
        length = read.getnframes()
        waveform = one.reference(outcome.job.request, {})["decode_audio.waveform"]
        assert read.readframes(length) == media.pcm(waveform.numpy()).astype("<i2").tobytes()
    with av.open(io.BytesIO(clip)) as container:
        [video], [audio] = container.streams.video, container.streams.audio
        assert (video.width, video.height, video.frames) == (128, 64, 9)
        assert (audio.rate, audio.channels) == (16_000, 2)
        assert sum(frame.samples for frame in container.decode(audio)) >= length


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("distilled", {"size": "96x64"}, "size", "multiples of 64"),
    ("guided", {"size": "80x64"}, "size", "multiples of 32"),
    ("distilled", {"frames": 10}, "frames", "one more than a multiple of 8"),
    ("distilled", {"guidance": 3.0}, "guidance", "1 to 1"),
    ("distilled", {"steps": 30}, "steps", "8 to 8"),
]


@pytest.mark.parametrize(("recipe", "asked", "field", "remedy"), REFUSED)
def test_what_the_recipe_cannot_do_is_refused(recipe: str, asked: dict[str, Any], field: str, remedy: str) -> None:
    card = family("2.3", "float32", recipe).card

    with pytest.raises(InvalidRequest, match=remedy) as refused:
        resolve(GenerationRequest(model=card.name, **REQUEST | asked), card, random.Random(1))

    assert refused.value.field == field


LONG: list[tuple[str, dict[str, Any], str, str]] = [
    ("distilled", {"size": "2112x64"}, "size", "up to 2048 each"),
    ("guided", {"size": "64x2080"}, "size", "up to 2048 each"),
    ("distilled", {"prompt": "a" * 65}, "prompt", "has 65 tokens; the text encoder takes up to 64"),
    ("guided", {"negative_prompt": "a" * 65}, "negative_prompt", "has 65 tokens; the text encoder takes up to 64"),
]


@pytest.mark.parametrize(("recipe", "asked", "field", "remedy"), LONG)
def test_what_is_longer_than_the_checkpoint_takes_is_refused(
    recipe: str, asked: dict[str, Any], field: str, remedy: str
) -> None:
    one = family("2.3", "float32", recipe)
    request = resolve(GenerationRequest(model=one.card.name, **REQUEST | asked), one.card, random.Random(1))

    with pytest.raises(InvalidRequest, match=remedy) as refused:
        one.notices(request)

    assert refused.value.field == field


@pytest.mark.parametrize(
    ("recipe", "asked"),
    [
        ("distilled", {"prompt": "  " + "a" * 64, "negative_prompt": "a" * 65, "size": "2048x64"}),
        ("guided", {"prompt": "a" * 64, "negative_prompt": "a" * 64, "size": "64x2048"}),
    ],
)
def test_what_is_as_long_as_the_checkpoint_takes_is_fine(recipe: str, asked: dict[str, Any]) -> None:
    one = family("2.3", "float32", recipe)

    one.notices(resolve(GenerationRequest(model=one.card.name, **REQUEST | asked), one.card, random.Random(1)))


def test_a_card_says_all_that_the_library_would_decide() -> None:
    for recipe in ("distilled", "guided"):
        card = family("2.3", "bfloat16", recipe).card
        assert card.recipe.guidances
        assert {*card.recipe.guidances} == {"video", "audio"}
        assert from_json(to_json(card)) == card


def test_without_an_upsampler_there_is_the_guided_recipe_only() -> None:
    alone = tiny_ltx2.without(tiny_ltx2.ltx2("2.0"), "latent_upsampler")

    assert "denoise" in opened(alone, "float32").card.loops
    with pytest.raises(BadCheckpoint, match="latent_upsampler"):
        opened(alone, "float32", recipe="distilled")


@pytest.mark.parametrize("changes", [{"rational_spatial_scale": 1.5}, {"temporal_upsample": True}])
def test_an_upsampler_of_another_kind_is_refused(changes: dict[str, Any]) -> None:
    other = tiny_ltx2.without(tiny_ltx2.ltx2("2.0"), "latent_upsampler")
    tiny_ltx2.upsampler(**changes).save_pretrained(other / "latent_upsampler")

    with pytest.raises(BadCheckpoint, match="no upsampler by 2"):
        opened(other, "float32", recipe="distilled")


def test_a_negative_prompt_without_use_is_noticed() -> None:
    one = family("2.0", "float32", "distilled")
    asked = resolve(GenerationRequest(model=one.card.name, **REQUEST), one.card, random.Random(1))

    assert [notice.field for notice in one.notices(asked)] == ["negative_prompt"]
