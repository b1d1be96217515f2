"""Wan-causal: one chunk against diffusers' transformer, and the rollout against a plain loop over it."""

from functools import cache
from typing import Any

import pytest
import torch

from cards.errors import InvalidCard, InvalidRequest
from cards.family import Components, Family
from cards.request import GenerationRequest, RequestChanges
from cards.wan_causal.forward import forward
from engine.collect import Retention, collect
from engine.events import StepCompleted
from tests.parity import tiny
from tests.parity.reference import Outcome, ended, expected, family, outcome, run
from tests.sim import Running, World

PRECISIONS = ("float32", "bfloat16")
WINDOWED = {"window": "7", "sink": "1"}
OTHERS = {"windowed": {"loop": "causal", **WINDOWED}, "plain": {}}
REQUEST: dict[str, Any] = {"prompt": "a red  cat &amp; a dog", "seed": 3, "size": "32x16", "frames": 33}
CHUNKS = 3


class Warm:
    """A family whose modules are loaded once, for all workers of this file."""

    def __init__(self, opened: Family) -> None:
        self.card = opened.card
        self.loops = opened.loops
        self.weights_digest = opened.weights_digest
        self.notices = opened.notices
        self.bodies = opened.bodies
        self.reference = opened.reference  # type: ignore[attr-defined]
        self._modules = opened.load("cpu")

    def load(self, device: str) -> Components:
        return self._modules


@cache
def causal(precision: str = "float32", **options: str) -> Family:
    return Warm(family(tiny.wan(), precision, loop="causal", **options))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_one_chunk_after_none_is_the_forward_of_diffusers(precision: str) -> None:
    transformer = causal(precision).load("cpu")["transformer"]
    latent = torch.randn(1, 16, 3, 4, 6, generator=torch.Generator().manual_seed(1)).to(transformer.dtype)
    text = torch.randn(1, 8, 32, generator=torch.Generator().manual_seed(2)).to(transformer.dtype)
    time = torch.tensor([937.5])

    with torch.inference_mode():
        ours, made = forward(transformer, latent, time, text)
        theirs = transformer(latent, time, text, return_dict=False)[0]

    assert torch.equal(ours, theirs)
    assert [tuple(one.shape) for one in made[0]] == [(1, 18, 2, 16)] * 2


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

    plain = expected(causal(precision, **options), made.job)
    assert made.of(plain) == plain
    assert {"rollout.x@2", "rollout.latent/2", "rollout.frames/2"} < plain.keys()


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
            await running.until(lambda: running.engine.results.steps == each)
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
    plain = expected(causal(**options), direct.job)
    assert direct.of(plain) == plain
    assert plain.keys() == {f"rollout.{name}/{chunk}" for name in ("latent", "frames") for chunk in range(CHUNKS)}


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
