"""LTX-2 and LTX-2.3 against diffusers' pipelines: equal bits of video and sound, through the real engine."""

import io
import random
import wave
from collections.abc import Iterator
from functools import cache
from typing import Any

import av
import pytest
import torch
from msgspec import Struct

from cards.card import from_json, to_json
from cards.errors import BadCheckpoint, InvalidRequest
from cards.family import Family
from cards.request import GenerationRequest, resolve
from tests.parity import tiny_ltx2
from tests.parity.reference import Outcome, digest, ended, images, run
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
GUIDED = REQUEST | {"size": "64x64", "steps": 4, "guidance": 2.5}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Which changes no bits, and is faster with tensors this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Reference(Struct, frozen=True):
    """What a chain of pipelines made: after each step the digests of its latents, then frames and sound."""

    steps: list[dict[str, str]]
    frames: str
    waveform: str


@cache
def pipelines(version: str, precision: str) -> Any:
    from diffusers import LTX2LatentUpsamplePipeline, LTX2Pipeline
    from diffusers.pipelines.ltx2 import LTX2LatentUpsamplerModel

    folder, dtype = tiny_ltx2.ltx2(version), getattr(torch, precision)
    made = LTX2Pipeline.from_pretrained(folder, dtype=dtype)
    made.set_progress_bar_config(disable=True)
    made._callback_tensor_inputs = [*made._callback_tensor_inputs, "audio_latents"]
    upsampler = LTX2LatentUpsamplerModel.from_pretrained(folder / "latent_upsampler", dtype=dtype)
    return made, LTX2LatentUpsamplePipeline(made.vae, upsampler), made.scheduler


@cache
def family(version: str, precision: str, recipe: str) -> Family:
    return opened(tiny_ltx2.ltx2(version), precision, recipe=recipe)


def settings(version: str, precision: str, recipe: str, **scales: float) -> dict[str, Any]:
    """What the card says, in the words of the pipeline."""
    guidances = family(version, precision, recipe).card.recipe.guidances
    assert guidances
    video, audio = guidances["video"], guidances["audio"]
    return {
        "prompt": REQUEST["prompt"],
        "negative_prompt": REQUEST["negative_prompt"],
        "max_sequence_length": 64,
        "num_frames": REQUEST["frames"],
        "frame_rate": 24.0,
        "guidance_scale": video.scale,
        "stg_scale": video.stg,
        "modality_scale": video.modality,
        "guidance_rescale": video.rescale,
        "audio_guidance_scale": audio.scale,
        "audio_stg_scale": audio.stg,
        "audio_modality_scale": audio.modality,
        "audio_guidance_rescale": audio.rescale,
        "spatio_temporal_guidance_blocks": [1],
        "use_cross_timestep": version == "2.3",
        "generator": torch.Generator().manual_seed(REQUEST["seed"]),
        "return_dict": False,
        "callback_on_step_end_tensor_inputs": ["latents", "audio_latents"],
        **scales,
    }


def noting(steps: list[dict[str, str]]) -> Any:
    def note(pipeline: Any, step: int, t: Any, made: dict[str, Any]) -> dict[str, Any]:
        steps.append({"latent": digest(made["latents"]), "audio": digest(made["audio_latents"])})
        return made

    return note


def ending(steps: list[dict[str, str]], video: Any, audio: Any) -> Reference:
    [clip], [sound] = video, audio
    return Reference(steps, digest(images(clip)), digest(sound.float()))


@cache
def distilled(version: str, precision: str) -> Reference:
    """As in the documentation of diffusers: the levels are taken as they are."""
    from diffusers.pipelines.ltx2.utils import DISTILLED_SIGMA_VALUES, STAGE_2_DISTILLED_SIGMA_VALUES

    pipeline, upsample, scheduler = pipelines(version, precision)
    pipeline.scheduler = type(scheduler).from_config(scheduler.config, use_dynamic_shifting=False, shift_terminal=None)
    steps: list[dict[str, str]] = []
    given = settings(version, precision, "distilled") | {"callback_on_step_end": noting(steps)}
    latents, audio = pipeline(
        **given, width=64, height=32, sigmas=DISTILLED_SIGMA_VALUES, num_inference_steps=8, output_type="latent"
    )
    [latents] = upsample(latents=latents, width=64, height=32, output_type="latent", return_dict=False)
    made = pipeline(
        **given,
        width=128,
        height=64,
        latents=latents,
        audio_latents=audio,
        sigmas=STAGE_2_DISTILLED_SIGMA_VALUES,
        num_inference_steps=3,
        noise_scale=STAGE_2_DISTILLED_SIGMA_VALUES[0],
    )
    return ending(steps, *made)


@cache
def guided(version: str, precision: str) -> Reference:
    pipeline, _, scheduler = pipelines(version, precision)
    pipeline.scheduler = scheduler
    steps: list[dict[str, str]] = []
    given = settings(version, precision, "guided", guidance_scale=GUIDED["guidance"])
    made = pipeline(**given, width=64, height=64, num_inference_steps=4, callback_on_step_end=noting(steps))
    return ending(steps, *made)


def found(outcome: Outcome) -> Reference:
    steps = [
        {name: tensors[name] for name in ("latent", "audio")}
        for node in ("base", "refine", "denoise")
        for (loop, _), tensors in sorted(outcome.steps.items())
        if loop == node
    ]
    return Reference(steps, outcome.last("decode_video")["frames"], outcome.last("decode_audio")["waveform"])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("version", VERSIONS)
async def test_two_distilled_stages_are_the_chain_of_three_pipelines(version: str, precision: str) -> None:
    made = found(await run(family(version, precision, "distilled"), REQUEST))

    assert made.steps == distilled(version, precision).steps
    assert made == distilled(version, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("version", VERSIONS)
async def test_one_guided_stage_is_the_pipeline_with_all_its_forwards(version: str, precision: str) -> None:
    made = found(await run(family(version, precision, "guided"), GUIDED))

    assert made.steps == guided(version, precision).steps
    assert made == guided(version, precision)


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
