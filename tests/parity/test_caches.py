"""The caches under real models: what jobs share, what is theirs alone, and that no log tells the difference."""

from collections.abc import Mapping
from typing import Any

import pytest
import safetensors.torch
from msgspec.structs import replace

from cards.cache_key import loop_of
from cards.card import ModelCard
from cards.extensions.observer import Seen
from cards.wire import CacheUse
from engine.events import StepCompleted
from tests.parity import every_card, tiny
from tests.parity.reference import ended, family
from tests.parity.test_lora import ATTENTION, TIME, made_with, submit, tensors
from tests.sim import Running, World
from workers.caches import ADAPTER, FEATURE, SLAB_KV, CacheClass
from workers.observed import ObservedExecutor


def uses(running: Running) -> dict[str, CacheUse]:
    return running.workers[0].executor.caches.uses()


async def told(running: Running, job_id: str) -> list[StepCompleted]:
    """The steps of a job as its log has them, but for the time that they took and who ran them."""
    events = [one.event for one in await running.client.events(job_id)]
    return [without_time(event) for event in events if isinstance(event, StepCompleted)]


def without_time(event: StepCompleted) -> StepCompleted:
    return replace(event, seconds=0.0)


@pytest.mark.parametrize("name", ["wan", "i2v", "ltx2", "flux2", "causal"])
async def test_the_log_of_a_job_is_the_same_where_its_features_were_made_before(name: str) -> None:
    async with every_card.world(names=[name]).engine() as running:
        jobs = [(await ended(running, await every_card.submit(running, name))).job for _ in range(2)]
        first, second = [await told(running, job.id) for job in jobs]

        features = sum(step.kind.startswith("encode") for step in first)
        assert (uses(running)[FEATURE].misses, uses(running)[FEATURE].hits) == (features, features)
        assert first == second


class Looking:
    """Notes the components that each step takes."""

    def __init__(self, cards: Mapping[str, ModelCard]) -> None:
        self.beyond: set[str] = set()
        self._cards = cards

    looks_inside = True

    def before_step(self, seen: Seen) -> None:
        pass

    def component(self, seen: Seen, name: str, component: Any) -> None:
        loop = loop_of(self._cards[seen.plan.instance], seen.plan)
        assert loop is not None
        if seen.plan.feature and name not in loop.components:
            self.beyond.add(f"{seen.plan.instance}: {seen.plan.kind} takes {name}")

    def after_step(self, seen: Seen, made: Any) -> Mapping[str, float]:
        return {}


async def test_a_feature_is_made_with_the_components_that_its_loop_names_and_no_others() -> None:
    """Which is what its key says."""
    names = ["wan", "i2v", "ltx2", "ltx2-guided", "flux2-distilled", "causal", "student", "story"]
    async with every_card.world(names=names).engine() as running:
        executor = running.workers[0].executor
        looking = Looking({name: family.card for name, family in every_card.families().items()})
        watched = ObservedExecutor(executor._models, executor._blobs, [looking])
        running.workers[0].executor = watched
        for name in names:
            await ended(running, await every_card.submit(running, name))

    assert looking.beyond == set()


def save(names: Any, seed: int) -> bytes:
    return safetensors.torch.save(tensors(names, 4, seed))


async def test_jobs_that_differ_in_the_loras_of_the_transformer_share_the_embedding_of_their_prompt() -> None:
    model = family(tiny.wan(), "float32")
    one, other = save(ATTENTION, 1), save(TIME, 2)
    async with World(families=(model,)).engine() as running:
        for stack in ((), ((one, 1.0),), ((other, 1.0),), ((one, 0.5),)):
            await ended(running, await submit(running, model, *stack))

        assert (uses(running)[FEATURE].misses, uses(running)[FEATURE].hits) == (1, 3)


@pytest.mark.parametrize("budget", [0, 1 << 30])
async def test_loras_take_turns_in_the_room_there_is_and_nobody_gets_anothers(budget: int) -> None:
    model = family(tiny.wan(), "float32")
    components = model.load("cpu")
    model.load = lambda device: components  # type: ignore[method-assign]
    stacks = ((save(ATTENTION, 1), 1.0),), ((save(ATTENTION, 2), 1.0),)
    alone = [(await made_with(model, *stack)).steps for stack in stacks]
    async with World(families=(model,)).engine() as running:
        caches = running.workers[0].executor.caches
        caches._classes[ADAPTER] = CacheClass(budget)
        ids = [await submit(running, model, *stack) for stack in stacks]
        together = [(await ended(running, job_id)).steps for job_id in ids]

        use = uses(running)[ADAPTER]
        assert together == alone
        assert alone[0] != alone[1]
        assert use.entries == (2 if budget else 0)
        assert (use.misses > 2) == (not budget)
        assert len(getattr(components["transformer"], "peft_config", {})) >= use.entries


@pytest.mark.parametrize("cancelled", [False, True])
async def test_the_window_of_a_rollout_is_counted_and_leaves_with_its_job(cancelled: bool) -> None:
    async with every_card.world(names=["causal"]).engine() as running:
        worker = running.workers[0]
        worker.hold_at = 1 + len(("denoise",) * 4 + ("context", "decode")) + 2  # the second chunk is denoised
        job_id = await every_card.submit(running, "causal")
        await running.until(lambda: worker.gate is not None)
        held = uses(running)[SLAB_KV]
        assert (held.entries, held.nbytes > 0) == (1, True)

        if cancelled:
            await running.client.cancel(job_id)
        worker.open()
        job = await running.ended(job_id)
        await running.until(lambda: held.entries == 0)

        assert (job.state.value == "cancelled") == cancelled
        assert held.nbytes == 0
        assert worker.executor.resident.held().nbytes == 0
