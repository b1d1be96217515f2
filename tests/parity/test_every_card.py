"""Every card at once: jobs that take turns, that move between stores, and that go on under other numerics."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cards.registry import needed
from cards.wan_causal.loops import FRESH
from engine import bundle
from engine.contents import Contents
from engine.events import NumericsChanged
from store.open import open_journal
from tests.parity.every_card import REQUESTS, alone, families, submit, world
from tests.parity.reference import Digests, ended
from tests.sim import Running, SimWorker

ANOTHER: dict[str, Any] = {"seed": 4, "prompt": "a dog"}
"""What else each model is asked for, while it is asked for that of `REQUESTS`."""


async def begin(running: Running, jobs: Iterable[str]) -> SimWorker:
    """A worker joins once all jobs are there for it, so that they take turns."""
    await running.until(lambda: running.engine.ledger.actors.keys() >= {*jobs})
    running.add_worker()
    return running.workers[-1]


async def test_jobs_of_all_cards_that_take_turns_make_the_bits_of_those_alone(unbroken: dict[str, Digests]) -> None:
    async with world().engine() as running:
        others = [await alone(running, model, **ANOTHER) for model in REQUESTS]
    async with world().engine(workers=0, policy="round_robin") as running:
        jobs = [await submit(running, model, **changes) for changes in ({}, ANOTHER) for model in REQUESTS]
        await begin(running, jobs)
        together = [(await ended(running, job)).steps for job in jobs]
        order = [unit.id.job for unit in running.workers[0].ran]

    assert together == [*unbroken.values(), *others]
    turns = [one != following for one, following in pairwise(order)]
    assert sum(turns) > 0.9 * len(turns), "they took turns"


@pytest.mark.parametrize("model", ["a14b", "i2v-a14b"])
async def test_a_request_for_two_experts_reaches_both(model: str) -> None:
    forwards: list[str] = []
    async with world(names=[model]).engine() as running:
        for name, transformer in transformers(running.workers[0]):
            transformer.register_forward_hook(lambda *_, name=name: forwards.append(name))
        await alone(running, model)

    assert {*forwards} == {"transformer", "transformer_2"}


async def test_the_request_for_a_window_is_longer_than_it(unbroken: dict[str, Digests]) -> None:
    whole, windowed = unbroken["causal"], unbroken["windowed"]

    assert whole.keys() == windowed.keys()
    first = min(step for step in whole if whole[step] != windowed[step])
    assert first == ("rollout", len(FRESH)), "they differ from the second chunk on"


def transformers(worker: SimWorker) -> Iterator[tuple[str, nn.Module]]:
    for model in worker.executor._models.values():
        for name, component in model.components.items():
            if name.startswith("transformer"):
                yield name, component


class StepCache:
    """As one is hung on a module: of three forwards of one shape, the last two are given what the first one made."""

    def __init__(self) -> None:
        self._left: dict[torch.Size, list[Tensor]] = {}

    def __call__(self, module: nn.Module, inputs: object, made: Tensor) -> Tensor:
        left = self._left.setdefault(made.shape, [])
        if not left:
            left += [made] * 3
        return left.pop()


@contextmanager
def caches(worker: SimWorker) -> Iterator[None]:
    """New ones, on the last part of each transformer: a causal rollout calls its parts and never the whole."""
    parts = [transformer.get_submodule("proj_out") for _, transformer in transformers(worker)]
    hooks = [part.register_forward_hook(StepCache()) for part in parts]
    yield
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("model", REQUESTS)
async def test_jobs_disturb_each_other_through_a_cache_on_a_module(model: str) -> None:
    """The negative control: a job for which the cache is new makes the same each time."""
    requests: tuple[dict[str, Any], ...] = ({}, ANOTHER)

    async def alone_with_caches(running: Running) -> list[Digests]:
        made = []
        for changes in requests:
            with caches(running.workers[0]):
                made.append(await alone(running, model, **changes))
        return made

    there = world(names=needed(families(), model))
    async with there.engine() as running:
        by_themselves = await alone_with_caches(running)
        assert await alone_with_caches(running) == by_themselves
    async with there.engine(workers=0, policy="round_robin") as running:
        jobs = [await submit(running, model, **changes) for changes in requests]
        with caches(await begin(running, jobs)):
            together = [(await ended(running, job)).steps for job in jobs]

    assert together != by_themselves


async def hold(running: Running, jobs: dict[str, str], units: int) -> None:
    """A worker stands still in a step."""
    worker = await begin(running, jobs.values())
    worker.hold_at = units
    await running.until(lambda: worker.gate is not None)


async def pause(running: Running, jobs: dict[str, str]) -> None:
    for job in jobs.values():
        await running.client.verbs.pause(job)
    running.workers[-1].open()
    await running.until(lambda: not running.engine.ledger.actors)


async def move(job: str, source: Running, target: Running, file: Path) -> None:
    journal, blobs = source.world.journal, source.world.blobs
    manifest = await bundle.export(
        journal, Contents(journal, blobs), job, file, origin="source", moved=True, resumes=True
    )
    await source.client.verbs.move_away(job, manifest.version, "target")
    await target.client.take_in(file)


async def test_every_card_moved_to_a_store_of_the_other_kind_and_back_makes_the_bits_of_the_unbroken_run(
    tmp_path: Path, new_database: Callable[[], str], unbroken: dict[str, Digests]
) -> None:
    async with (
        open_journal(f"sqlite:///{tmp_path}/store.db") as sqlite,
        open_journal(new_database()) as postgres,
        world(sqlite).engine(workers=0, policy="round_robin") as here,
        world(postgres).engine(workers=0, policy="round_robin") as there,
    ):
        jobs = {model: await submit(here, model) for model in REQUESTS}
        done = dict.fromkeys(jobs, 0)
        for source, target in ((here, there), (there, here)):
            await hold(source, jobs, units=2 * len(jobs))
            await pause(source, jobs)
            for model, job in jobs.items():
                before, done[model] = done[model], len(await source.client.checkpoints(job))
                assert before < done[model] < len(unbroken[model]), f"{model} was not part way"
                await move(job, source, target, tmp_path / f"{model}-{before}.tar")
        here.add_worker()

        for model, job in jobs.items():
            made = await ended(here, job)
            assert made.steps == unbroken[model], model
            assert made.job.exact


async def test_every_card_that_goes_on_under_other_numerics_says_that_it_is_inexact() -> None:
    both = world()
    async with both.engine(workers=0, policy="round_robin") as running:
        jobs = {model: await submit(running, model) for model in REQUESTS}
        await hold(running, jobs, units=2 * len(jobs))
    async with both.engine(workers=0, policy="round_robin") as running:
        running.add_worker(fingerprint="another machine")
        for model, job in jobs.items():
            made = await ended(running, job)
            events = [told.event for told in await running.client.events(job)]
            changes = [event.fingerprint for event in events if isinstance(event, NumericsChanged)]
            assert (changes, made.job.exact) == (["sim", "another machine"], False), model
