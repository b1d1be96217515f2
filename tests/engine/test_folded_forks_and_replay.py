"""Forks, rewinds, retries and replays of a loop whose state is a fold, from any step."""

from typing import Any

import pytest
from msgspec import UNSET

from cards.request import RequestChanges
from cards.wire import StepResult, WorkUnit
from engine.check import check
from engine.contents import Contents
from engine.errors import TensorsGone
from engine.events import JobRewound
from engine.job import State
from engine.replay import Verdict, verify
from store.blobs import MemoryBlobs
from tests.engine.folding import (
    ALL,
    EVERY,
    LARGE,
    PROMPTS,
    SMALL,
    WIDE,
    finished,
    held,
    log,
    other_fold,
    owed,
    steps,
    unfolded,
    world,
)
from tests.folded import Folded
from workers.execute import Executor
from workers.loaded import load_models

# -- forks, rewinds and retries -------------------------------------------------------------------------------------


@PROMPTS
@pytest.mark.parametrize("at_step", range(ALL + 1))
async def test_a_fork_at_any_step_ends_as_its_parent(at_step: int, prompt: str) -> None:
    there = world()
    async with there.engine() as running:
        parent = await finished(running, prompt)
    async with there.engine() as running:
        fork = await running.client.fork(parent.id, at_step)
        ended = await running.ended(fork.id)

        assert (ended.state, ended.outputs, ended.artifacts) == (State.COMPLETED, parent.outputs, parent.artifacts)
        assert await steps(running, fork.id) == await steps(running, parent.id)
        if at_step < ALL:
            assert len(running.workers[0].ran[0].refolds) == owed(at_step + 1, EVERY)


@pytest.mark.parametrize("changes", [{"guidance": 3.0}, {"prompt": f"{SMALL} start=2"}], ids=str)
@pytest.mark.parametrize("at_step", range(ALL))
async def test_a_fork_with_changes_is_what_it_is_where_all_states_are_stored(
    at_step: int, changes: dict[str, Any]
) -> None:
    made = []
    for there in (world(UNSET), world()):
        async with there.engine() as running:
            parent = await finished(running)
        async with there.engine() as running:
            fork = await running.client.fork(parent.id, at_step, RequestChanges(**changes))
            assert (await running.ended(fork.id)).state is State.COMPLETED
            made.append(await steps(running, fork.id))

    assert made[0] == made[1]


@pytest.mark.parametrize("to_step", range(ALL))
async def test_a_rewind_to_any_step_ends_as_before(to_step: int) -> None:
    there = world()
    async with there.engine() as running:
        job = await held(running, ALL, LARGE)
        await running.client.verbs.pause(job)
        await running.client.verbs.rewind(job, to_step)
    async with there.engine() as running:
        await running.client.verbs.resume(job)
        ended = await running.ended(job)

        assert ended.state is State.COMPLETED, ended.failure
        assert await steps(running, job) == await unfolded(LARGE)
        assert len(running.workers[0].ran[0].refolds) == owed(to_step + 1, EVERY)
        [rewound] = [event for event in await log(running, job) if isinstance(event, JobRewound)]
        assert len(rewound.standing.refolds) == owed(to_step + 1, EVERY)
        assert (await check(there.journal)).problems == ()


@pytest.mark.parametrize("units", range(1, ALL + 1))
async def test_a_terminated_job_is_retried_from_where_it_was(units: int) -> None:
    there = world()
    async with there.engine() as running:
        job = await held(running, units)
        await running.client.verbs.terminate(job)
    async with there.engine() as running:
        await running.client.verbs.retry(job)
        ended = await running.ended(job)

        assert ended.state is State.COMPLETED, ended.failure
        assert await steps(running, job) == await unfolded()
        assert len(running.workers[0].ran[0].refolds) == owed(units, EVERY)


async def test_a_step_is_gone_if_an_output_since_its_snapshot_is() -> None:
    there = world()
    async with there.engine() as running:
        parent = await finished(running, LARGE)
        counted = [step.tensors for step in await running.client.checkpoints(parent.id) if step.loop == "count"]
        del there.blobs._data[counted[3]["m"].digest]  # as retention would: the one after the first snapshot
        for at_step in (5, 6):  # the first of them follows that step, the second the one after it
            with pytest.raises(TensorsGone) as gone:
                await running.client.fork(parent.id, at_step)
            assert gone.value.nearest == (4, 7)
        for at_step in (4, 7):
            fork = await running.client.fork(parent.id, at_step)
            assert (await running.ended(fork.id)).state is State.COMPLETED


async def test_a_move_says_how_many_bytes_are_read_for_it() -> None:
    async with world().engine() as running:
        await running.until(lambda: bool(running.engine.fleet.seats))
        running.add_worker(pool="other")
        await running.until(lambda: len(running.engine.fleet.seats) == 2)
        job = await held(running, 7, LARGE)  # the snapshot of step 3 and two outputs lie behind it
        plan = await running.client.verbs.migrate(job, pool="other", dry_run=True)
        running.workers[0].open()

        output, latent, start = 4 * 4 * WIDE * 2, 4 * 4 * WIDE * 4, 4 * 4 * 4
        assert plan.nbytes == 3 * latent + 2 * output + start - 0


# -- replay ---------------------------------------------------------------------------------------------------------


class Fresh:
    """A device with nothing on it, and the units that it was given."""

    def __init__(self, family: Folded) -> None:
        self.ran: list[WorkUnit] = []
        self._executor = Executor(load_models({"toy": family}), MemoryBlobs(), stores=False)

    async def __call__(self, unit: WorkUnit, frames: list[bytes]) -> StepResult:
        self.ran.append(unit)
        return self._executor.run(unit, frames).result


@PROMPTS
@pytest.mark.parametrize("from_step", range(ALL + 1))
async def test_a_log_is_executed_again_from_any_step(from_step: int, prompt: str) -> None:
    there = world()
    async with there.engine() as running:
        events = await log(running, (await finished(running, prompt)).id)
    device = Fresh(Folded(EVERY))

    verdict = await verify(events, Folded(EVERY), device, Contents(there.journal, there.blobs), from_step=from_step)

    assert (verdict.equal, verdict.steps, verdict.pruned) == (True, ALL - from_step, 0), verdict.difference
    refolds = [len(unit.refolds) for unit in device.ran]
    assert refolds == [owed(from_step + 1, EVERY), *[0] * (len(refolds) - 1)][: len(refolds)]


@pytest.mark.parametrize("from_step", range(ALL + 1))
async def test_a_log_that_was_rewound_is_executed_again_from_any_step(from_step: int) -> None:
    there = world()
    async with there.engine() as running:
        job = await held(running, 8)
        await running.client.verbs.rewind(job, 3)
        running.workers[0].open()
        await running.ended(job)
        events = await log(running, job)

    verdict = await verify(
        events, Folded(EVERY), Fresh(Folded(EVERY)), Contents(there.journal, there.blobs), from_step=from_step
    )

    assert verdict.equal, verdict.difference
    assert verdict.steps == 7 + ALL - 3 - from_step


async def verdict_of(family: Folded, from_step: int) -> Verdict:
    there = world()
    async with there.engine() as running:
        events = await log(running, (await finished(running)).id)
    return await verify(events, family, Fresh(family), Contents(there.journal, there.blobs), from_step=from_step)


async def test_another_fold_differs_at_the_first_step_that_it_changes() -> None:
    family = Folded(EVERY, other_fold)

    first, later = [(await verdict_of(family, from_step)).difference for from_step in (0, 6)]

    assert first is not None
    assert (first.node, first.step, first.what) == ("count", 0, "newer")
    assert later is not None
    assert (later.node, later.step, later.what) == ("count", 5, "step")
    assert "newer of step 3, made again" in later.found
