"""Interceptors on a tiny Wan: their state is the job's, so it is resumed, interleaved and replayed like all else."""

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from cards import checkpoint
from cards.branches import driven
from cards.card import Range
from cards.errors import InvalidCard, InvalidRequest, NoReference
from cards.family import Components, Family, Made, StepBody
from cards.forward import Forward, Outputs
from cards.model import Model
from cards.request import GenerationRequest, RequestChanges
from cards.wan.family import Wan
from cards.wire import StepResult, WorkPlan, WorkUnit
from engine.contents import Contents
from engine.events import JobEvent, NodeStarted, StepCompleted
from engine.replay import verify
from ops.blobs import WorkerBlobs
from store.blobs import MemoryBlobs
from tests.parity import reference, tiny
from tests.parity.reference import Digests, ended, expected, outcome
from tests.sim import Running, World
from workers.execute import Executor
from workers.loaded import load_models

NAMES = ("step_skip", "block_cache")
THRESHOLDS = {"step_skip": 0.5, "block_cache": 0.1}
REUSED = {"step_skip": [1, 3], "block_cache": [1, 2]}
"""The steps of the request below that are answered out of what is remembered."""

STEPS = 6
REQUEST: dict[str, Any] = {
    "prompt": "a red cat",
    "negative_prompt": "blurry",
    "seed": 3,
    "steps": STEPS,
    "guidance": 4.0,
    "size": "48x32",
    "frames": 1,
}


@cache
def family(interceptor: str = "none", precision: str = "float32") -> Family:
    return reference.family(tiny.wan(), precision, interceptor=interceptor)


def asking(name: str, threshold: float | None = None, **changes: Any) -> dict[str, Any]:
    return REQUEST | {"interceptors": {name: THRESHOLDS[name] if threshold is None else threshold}} | changes


def latents(found: Digests) -> list[str]:
    return [tensors["latent"] for (node, _), tensors in sorted(found.items()) if node == "denoise"]


async def alone(one: Family, request: Mapping[str, Any]) -> list[str]:
    """What a job leaves that has the worker to itself."""
    return latents((await reference.run(one, request)).steps)


async def history(running: Running, job: str) -> list[JobEvent]:
    return [told.event for told in await running.client.events(job)]


def denoising(events: Sequence[JobEvent]) -> list[StepCompleted]:
    return [event for event in events if isinstance(event, StepCompleted) and event.node == "denoise"]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
async def test_a_threshold_of_zero_changes_no_bit(name: str, precision: str) -> None:
    plain = await alone(family("none", precision), REQUEST)

    assert await alone(family(name, precision), asking(name, 0.0)) == plain


@pytest.mark.parametrize("name", NAMES)
async def test_a_job_that_does_not_ask_runs_what_it_always_ran(name: str) -> None:
    async with World(families=(family(name),)).engine() as running:
        made = await outcome(running, family(name), REQUEST)
        events = await history(running, made.job.id)

    assert latents(made.steps) == await alone(family(), REQUEST)
    assert {event.kind for event in denoising(events)} == {"denoise"}
    assert "wan.unipc.cfg/1" in [event.semantics for event in events if isinstance(event, NodeStarted)]
    assert made.job.exact
    assert not made.job.notices


@pytest.mark.parametrize("name", NAMES)
async def test_the_log_says_what_a_job_asked_for_and_what_was_reused(name: str) -> None:
    async with World(families=(family(name),)).engine() as running:
        made = await outcome(running, family(name), asking(name))
        steps = denoising(events := await history(running, made.job.id))

    assert [event.step for event in steps if event.scalars[f"{name}/text"]] == REUSED[name]
    assert f"wan.unipc.cfg.{name}/1" in [event.semantics for event in events if isinstance(event, NodeStarted)]
    assert not made.job.exact
    assert [(notice.code, notice.field) for notice in made.job.notices] == [("inexact", f"interceptors.{name}")]
    assert latents(made.steps) != await alone(family(), REQUEST)


@pytest.mark.parametrize("name", NAMES)
async def test_a_job_resumed_after_any_step_is_the_one_that_was_never_interrupted(name: str) -> None:
    expected = await alone(family(name), asking(name))
    for done in range(1, STEPS + 1):
        world = World(families=(family(name),))
        async with world.engine() as running:
            running.workers[0].hold_at = 1 + done + 1  # encoding is one step
            submitted = await running.client.submit(GenerationRequest(model="tiny", **asking(name)))
            await stands_still(running, after=1 + done)
        async with world.engine() as running:
            assert latents((await ended(running, submitted.id)).steps) == expected


async def stands_still(running: Running, after: int) -> None:
    await running.until(lambda: running.workers[0].gate is not None and running.engine.results.steps >= after)


@pytest.mark.parametrize("name", NAMES)
async def test_replaying_the_log_makes_its_bytes(name: str) -> None:
    world = World(families=(family(name),))
    async with world.engine() as running:
        made = await outcome(running, family(name), asking(name))
        events = await history(running, made.job.id)

    for from_step in (0, 4):
        device = Executor(load_models({"tiny": family(name)}), WorkerBlobs(MemoryBlobs()))

        async def execute(unit: WorkUnit, frames: list[bytes], device: Executor = device) -> StepResult:
            return device.run(unit, frames).result

        contents = Contents(world.journal, world.blobs)
        verdict = await verify(events, family(name), execute, contents, from_step=from_step)
        assert verdict.equal, verdict.difference


async def interleaved(one: Family, requests: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """What the jobs leave that share one worker, whose steps take turns."""
    async with World(families=(one,)).engine(policy="round_robin") as running:
        jobs = [(await running.client.submit(GenerationRequest(model="tiny", **asked))).id for asked in requests]
        made = [latents((await ended(running, job)).steps) for job in jobs]
        order = [unit.id.job for unit in running.workers[0].ran if unit.plan.loop == "denoise"]
        assert sum(here != after for here, after in pairwise(order)) > len(requests)
    return made


class OnTheModule(Wan):
    """A negative control: diffusers' own first-block cache, which lives on the module, in the pipeline's manner."""

    def bodies(self) -> Mapping[str, StepBody]:
        from cards.wan import steps

        def cached(forwards: Mapping[str, Forward]) -> dict[str, Outputs]:
            return {branch: _in_context(branch, forward) for branch, forward in forwards.items()}

        def denoise(components: Components, plan: WorkPlan, reads: Mapping[str, torch.Tensor]) -> Made:
            if not components["transformer"].is_cache_enabled:
                components["transformer"].enable_cache(_diffusers_config())
            return driven(steps.denoise(components, plan, reads), cached)

        return {**steps.BODIES, "denoise": denoise}


def _in_context(branch: str, forward: Forward) -> Outputs:
    with forward.module.cache_context({"text": "cond", "negative": "uncond"}[branch]):
        return forward()


def _diffusers_config() -> Any:
    from diffusers import FirstBlockCacheConfig

    return FirstBlockCacheConfig(threshold=THRESHOLDS["block_cache"])


@pytest.mark.parametrize("name", NAMES)
async def test_jobs_that_take_turns_are_the_jobs_alone(name: str) -> None:
    requests = [asking(name), asking(name, seed=4, prompt="a dog")]

    assert await interleaved(family(name), requests) == [await alone(family(name), asked) for asked in requests]


async def test_with_a_cache_on_the_module_jobs_disturb_each_other() -> None:
    one = OnTheModule(Model(name="tiny", folder=str(tiny.wan()), precision="float32"), checkpoint.read(tiny.wan()))
    requests = [REQUEST, REQUEST | {"seed": 4, "prompt": "a dog"}]
    by_themselves = [await alone(one, asked) for asked in requests]

    assert by_themselves == [await alone(family("block_cache"), asking("block_cache") | asked) for asked in requests]
    assert await interleaved(one, requests) != by_themselves


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
async def test_the_block_cache_is_that_of_the_pipeline(precision: str) -> None:
    made = await reference.run(one := family("block_cache", precision), asking("block_cache"))

    pipelines = expected(one, made.job)
    assert made.of(pipelines) == pipelines


async def test_what_diffusers_does_not_have_is_held_against_nothing() -> None:
    made = await reference.run(one := family("step_skip"), asking("step_skip"))

    with pytest.raises(NoReference, match=r"step_skip is none of diffusers; leave out interceptors\.step_skip"):
        expected(one, made.job)


@pytest.mark.parametrize(
    ("enabled", "asked", "problem"),
    [
        ("none", {"step_skip": 0.1}, "there are: none"),
        ("step_skip", {"block_cache": 0.1}, "there are: step_skip"),
        ("step_skip", {"step_skip": 1.5}, "threshold from 0 to 1"),
        ("step_skip", {"step_skip": float("nan")}, "threshold from 0 to 1"),
    ],
)
async def test_a_request_sets_only_what_is_enabled_and_in_range(
    enabled: str, asked: dict[str, float], problem: str
) -> None:
    async with World(families=(family(enabled),)).engine(workers=0) as running:
        with pytest.raises(InvalidRequest, match=problem):
            await running.client.submit(GenerationRequest(model="tiny", **REQUEST, interceptors=asked))


async def test_a_fork_may_have_another_threshold_of_the_same_interceptor() -> None:
    one = family("step_skip")
    async with World(families=(one,)).engine() as running:
        parent = await outcome(running, one, asking("step_skip"))
        plain = await outcome(running, one, REQUEST)
        with pytest.raises(InvalidRequest, match=r"interceptors\.step_skip: 1.5 is no threshold from 0 to 1"):
            await running.client.fork(parent.job.id, 0, RequestChanges(interceptors={"step_skip": 1.5}))
        with pytest.raises(InvalidRequest, match=r"interceptors: stay those of the job \(step_skip\)"):
            await running.client.fork(parent.job.id, 0, RequestChanges(interceptors={}))
        with pytest.raises(InvalidRequest, match=r"interceptors: stay those of the job \(none\)"):
            await running.client.fork(plain.job.id, 0, RequestChanges(interceptors={"step_skip": 0.5}))
        fork = await running.client.fork(parent.job.id, 0, RequestChanges(interceptors={"step_skip": 0.0}))
        forked = await ended(running, fork.id)

    assert latents(forked.steps) == await alone(one, asking("step_skip", 0.0)) != latents(parent.steps)


def test_a_distilled_card_takes_no_interceptor() -> None:
    card = family("step_skip").card
    for recipe in (replace(card.recipe, method="dmd"), replace(card.recipe, steps=Range(4, 4, 4))):
        with pytest.raises(InvalidCard, match=r"loops\.denoise\.interceptors\.step_skip: distilled weights"):
            replace(card, recipe=recipe).validate()


def test_a_loop_is_intercepted_only_where_it_says_that_it_can_be() -> None:
    card = family("block_cache").card
    denoise = replace(card.loops["denoise"], points=("forward",))

    with pytest.raises(InvalidCard, match="cannot be intercepted at 'blocks'"):
        replace(card, loops={**card.loops, "denoise": denoise}).validate()


def test_an_unknown_interceptor_is_refused_when_the_model_is_opened() -> None:
    with pytest.raises(InvalidCard, match=r"options\.interceptor.*block_cache, none, step_skip"):
        reference.family(tiny.wan(), "float32", interceptor="magic")
