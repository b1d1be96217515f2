"""Wan-causal: one chunk against diffusers' transformer, and the rollout against a plain loop over the same forward."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from cards.errors import InvalidCard, InvalidRequest
from cards.family import Components, Family
from cards.request import GenerationRequest, RequestChanges
from cards.sampling import noise, noise_seed
from cards.wan_causal.forward import forward
from engine.collect import Retention, collect
from engine.events import StepCompleted
from tests.parity import tiny
from tests.parity.reference import Outcome, digest, ended, family, images, outcome, run
from tests.sim import Running, World

PRECISIONS = ("float32", "bfloat16")
WINDOWED = {"window": "7", "sink": "1"}
OTHERS = {"windowed": {"loop": "causal", **WINDOWED}, "plain": {}}
REQUEST: dict[str, Any] = {"prompt": "a red  cat &amp; a dog", "seed": 3, "size": "32x16", "frames": 33}
CHUNKS = 3
SIGMAS = torch.tensor([1.0, 0.9375, 5 / 6, 0.625])


class Warm:
    """A family whose modules are loaded once, for all workers of this file."""

    def __init__(self, opened: Family) -> None:
        self.card = opened.card
        self.loops = opened.loops
        self.weights_digest = opened.weights_digest
        self.notices = opened.notices
        self.bodies = opened.bodies
        self._modules = opened.load("cpu")

    def load(self, device: str) -> Components:
        return self._modules


@cache
def causal(precision: str = "float32", **options: str) -> Family:
    return Warm(family(tiny.wan(), precision, loop="causal", **options))


@cache
def pipeline(precision: str) -> Any:
    from diffusers import WanPipeline

    return WanPipeline.from_pretrained(tiny.wan(), dtype=getattr(torch, precision))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_one_chunk_after_none_is_the_forward_of_diffusers(precision: str) -> None:
    transformer = pipeline(precision).transformer
    latent = torch.randn(1, 16, 3, 4, 6, generator=torch.Generator().manual_seed(1)).to(transformer.dtype)
    text = torch.randn(1, 8, 32, generator=torch.Generator().manual_seed(2)).to(transformer.dtype)
    time = torch.tensor([937.5])

    with torch.inference_mode():
        ours, made = forward(transformer, latent, time, text)
        theirs = transformer(latent, time, text, return_dict=False)[0]

    assert torch.equal(ours, theirs)
    assert [tuple(one.shape) for one in made[0]] == [(1, 18, 2, 16)] * 2


@torch.inference_mode()
def plain_rollout(precision: str, window: int = 21, sink: int = 0, chunks: int = CHUNKS) -> list[Tensor]:
    """Self-Forcing's causal_inference.py in few words: the list of all frames' keys and values is cut from."""
    pipe = pipeline(precision)
    text, _ = pipe.encode_prompt(REQUEST["prompt"], do_classifier_free_guidance=False, max_sequence_length=512)
    clean: list[Tensor] = []
    cached: list[Tensor] = []
    for chunk in range(chunks):
        evicted = max(0, len(cached) + 3 - window)
        past = cached[:sink] + cached[sink + evicted :]
        x = drawn(chunk, 0, precision)
        for index, sigma in enumerate(SIGMAS):
            velocity, _ = forward(pipe.transformer, x, (1000 * sigma).expand(1), text, past, 3 * chunk)
            x0 = (x.double() - sigma.double() * velocity.double()).to(x.dtype)
            if index < 3:
                level = SIGMAS[index + 1]
                x = ((1 - level) * x0.float() + level * drawn(chunk, index + 1, precision).float()).to(x.dtype)
        _, made = forward(pipe.transformer, x0, torch.zeros(1), text, past, 3 * chunk)
        cached += torch.stack([torch.stack(one) for one in made]).chunk(3, dim=3)
        clean.append(x0)
    return clean


def drawn(chunk: int, index: int, precision: str) -> Tensor:
    seed = noise_seed(REQUEST["seed"], loop="rollout", step=chunk, purpose=f"noise/{index}")
    return noise((1, 16, 3, 2, 4), seed).to(getattr(torch, precision))


@torch.inference_mode()
def decoded(precision: str, clean: list[Tensor]) -> Tensor:
    """The whole clip at once, as WanPipeline decodes it."""
    pipe = pipeline(precision)
    config = pipe.vae.config
    latent = torch.cat(clean, dim=2).to(pipe.vae.dtype)
    mean, deviation = (
        torch.tensor(one).view(1, 16, 1, 1, 1).to(latent.dtype) for one in (config.latents_mean, config.latents_std)
    )
    video = pipe.vae.decode(latent / (1.0 / deviation) + mean, return_dict=False)[0]
    return images(pipe.video_processor.postprocess_video(video, output_type="pil")[0])


def series(made: Outcome, name: str) -> list[str]:
    found = {output: ref.digest for output, ref in made.job.outputs.items() if output.startswith(f"rollout.{name}/")}
    return [found[f"rollout.{name}/{index}"] for index in range(len(found))]


async def unbroken(precision: str = "float32", **options: str) -> Outcome:
    key = (precision, *options.items())
    if key not in _unbroken:
        _unbroken[key] = await run(causal(precision, **options), REQUEST)
    return _unbroken[key]


_unbroken: dict[Any, Outcome] = {}


@pytest.mark.parametrize("options", [{}, WINDOWED], ids=["all", "windowed"])
@pytest.mark.parametrize("precision", PRECISIONS)
async def test_a_rollout_is_that_of_a_plain_loop(precision: str, options: dict[str, str]) -> None:
    made = await unbroken(precision=precision, **options)

    clean = plain_rollout(precision, **{name: int(value) for name, value in options.items()})
    assert series(made, "latent") == [digest(one) for one in clean]
    frames = decoded(precision, clean)
    assert series(made, "frames") == [digest(one.clone()) for one in frames.split([9, 12, 12])]


async def test_a_window_matters() -> None:
    whole, windowed = series(await unbroken(), "latent"), series(await unbroken(**WINDOWED), "latent")

    assert whole[:2] == windowed[:2]
    assert whole[2] != windowed[2]


async def test_frames_come_out_chunk_by_chunk() -> None:
    """That of a chunk is there before the next one is denoised; what a chunk derives is nowhere stored."""
    async with World(families=(causal(),)).engine() as running:
        submitted = await running.client.submit(GenerationRequest(model="tiny", **REQUEST))
        job = await running.ended(submitted.id)
        told = [one.event for one in await running.client.events(job.id)]

    steps = [event for event in told if isinstance(event, StepCompleted) and event.node == "rollout"]
    assert [event.kind for event in steps] == [*["denoise"] * 4, "context", "decode"] * 2 + ["denoise"] * 4 + ["decode"]
    segments = [[one.name for one in event.artifacts] for event in steps if event.kind == "decode"]
    assert segments == [[f"segment-{chunk:03d}.mp4"] for chunk in range(CHUNKS)]
    assert [event.derived for event in steps if event.kind == "context"] == [("kv/0",), ("kv/1",)]
    assert sorted(job.artifacts) == ["contact_sheet.png", *(name for [name] in segments), "video.mp4"]


LIVES = [("float32", WINDOWED, 1), ("bfloat16", {}, 4)]


@pytest.mark.parametrize(("precision", "options", "each"), LIVES, ids=["windowed", "all"])
async def test_a_rollout_that_a_new_worker_goes_on_with(precision: str, options: dict[str, str], each: int) -> None:
    """After `each` steps engine and worker end; the next have no keys and values, and make them again to the bit."""
    whole = await unbroken(precision, **options)
    world = World(families=(causal(precision, **options),))
    async with world.engine(workers=0) as running:
        job = (await running.client.submit(GenerationRequest(model="tiny", **REQUEST))).id
    for _ in range(len(whole.steps) // each):
        async with world.engine() as running:
            running.workers[0].hold_at = each + 1
            await running.until(lambda: running.engine.steps == each)
    async with world.engine() as running:
        resumed = await ended(running, job)

    assert resumed.job.attempt > len(whole.steps) // each
    assert resumed.steps == whole.steps
    assert resumed.job.artifacts == whole.job.artifacts


async def rolled(running: Running, **changes: Any) -> Outcome:
    return await outcome(running, running.world.families[0], REQUEST | changes)


@pytest.mark.parametrize("options", [{}, WINDOWED], ids=["all", "windowed"])
async def test_a_clip_that_is_continued_is_the_one_that_was_rolled_out_at_once(options: dict[str, str]) -> None:
    whole = await unbroken(**options)
    async with World(families=(causal(**options),)).engine() as running:
        short = await rolled(running, frames=9)
        longer = await rolled(running, frames=21, continues=short.job.id)
        less_said = {"seed": None, "size": None}  # as the job that it goes on from
        chained = await rolled(running, continues=longer.job.id, **less_said)
        direct = await rolled(running, continues=short.job.id)

    for made in (chained, direct):
        assert series(made, "latent") == series(whole, "latent")
        assert series(made, "frames") == series(whole, "frames")
        assert made.job.artifacts["video.mp4"] == whole.job.artifacts["video.mp4"]
    assert direct.job.artifacts.keys() == whole.job.artifacts.keys() - {"segment-000.mp4"}
    assert direct.job.artifacts.items() <= whole.job.artifacts.items()


async def test_a_continued_clip_goes_on_on_a_new_worker() -> None:
    world = World(families=(causal(**WINDOWED),))
    async with world.engine() as running:
        short = await rolled(running, frames=21)
        await running.client.purge((await rolled(running, frames=9)).job.id)
        running.workers[0].hold_at = len(running.workers[0].ran) + 7
        request = REQUEST | {"continues": short.job.id}
        job = (await running.client.submit(GenerationRequest(model="tiny", **request))).id
        await running.until(lambda: running.workers[0].gate is not None)
    async with world.engine() as running:
        resumed = await ended(running, job)

    assert series(resumed, "frames") == series(await unbroken(**WINDOWED), "frames")


async def refused(running: Running, model: str = "tiny", **changes: Any) -> str:
    with pytest.raises(InvalidRequest) as error:
        await running.client.submit(GenerationRequest(model=model, **REQUEST | changes))
    return str(error.value)


async def test_what_cannot_be_continued_is_refused_in_words() -> None:
    windowed, plain = (Warm(family(tiny.wan(), "float32", name, **options)) for name, options in OTHERS.items())
    world = World(families=(causal(), windowed, plain))
    async with world.engine() as running:
        short = (await rolled(running, frames=9)).job.id
        assert "no job 'nobody'" in await refused(running, continues="nobody")
        assert "plain goes on from no job" in await refused(running, "plain", continues=short)
        assert "another card or other weights than windowed" in await refused(running, "windowed", continues=short)
        assert "frames: 9 counts from the beginning" in await refused(running, continues=short, frames=9)
        assert "is 32x16; leave it out" in await refused(running, continues=short, size="16x16")
        running.workers[0].frozen = True
        running_now = (await running.client.submit(GenerationRequest(model="tiny", **REQUEST))).id
        assert "it must be completed" in await refused(running, continues=running_now)
        cleared = Retention(steps_s=0.0, grace_s=-1.0)
        await collect(world.journal, world.blobs, {}, cleared, now=world.clock.now() + 1, dry_run=False)
        assert "no longer stored" in await refused(running, continues=short)


async def test_a_fork_of_a_continued_job_still_goes_on_from_what_it_continues() -> None:
    async with World(families=(causal(),)).engine() as running:
        short = (await rolled(running, frames=9)).job.id
        longer = (await rolled(running, frames=21, continues=short)).job.id

        for changes, problem in (
            (RequestChanges(size="16x16"), "size: 16x16: the job continues one of 32x16; leave it out"),
            (
                RequestChanges(frames=9),
                f"frames: 9: the job has 21; ask for more, or submit one that continues {short}",
            ),
        ):
            with pytest.raises(InvalidRequest, match=problem):
                await running.client.fork(longer, 0, changes)
        forked = await ended(running, (await running.client.fork(longer, 0, RequestChanges(frames=33))).id)
        direct = await rolled(running, frames=33, continues=short)

    assert series(forked, "frames") == series(direct, "frames")


async def test_what_this_card_does_not_do_is_refused_in_words() -> None:
    async with World(families=(causal(),)).engine(workers=0) as running:
        assert "frames: 12 is not possible; it must be 9 more than a multiple of 12" in await refused(
            running, frames=12
        )
        assert "from 9 to 81" in await refused(running, frames=93)
        assert "up to 512 each" in await refused(running, size="16x528")
        assert "4 to 4" in await refused(running, steps=8)
        assert "1 to 1" in await refused(running, guidance=5.0)
        job = await running.client.submit(GenerationRequest(model="tiny", **REQUEST, negative_prompt="blurry"))
        assert [notice.field for notice in job.notices] == ["negative_prompt"]


def test_a_window_must_hold_its_sink_and_a_chunk() -> None:
    with pytest.raises(InvalidCard, match="5 and a chunk of 3 are more than 7"):
        family(tiny.wan(), "float32", loop="causal", window="7", sink="5")
    with pytest.raises(InvalidCard, match="none of bidirectional, causal"):
        family(tiny.wan(), "float32", loop="sideways")
    assert causal(**WINDOWED).card.output.canvas.most_frames == 4 * (30 - 1) + 1  # type: ignore[union-attr]
