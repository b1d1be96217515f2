"""Forks: the first steps are the parent's by digest, the rest is what a serial run of the changed request makes."""

from typing import Any

import pytest

from cards.errors import InvalidRequest
from cards.request import RequestChanges
from cards.wire import StepResult, WorkUnit
from engine.check import check
from engine.contents import Contents
from engine.errors import Draining, JobNotFound, KeyReused, NoSuchStep, TensorsGone
from engine.events import JobEvent, RequestChanged
from engine.job import Job, Parent, State
from engine.replay import diff, verify
from store.blobs import MemoryBlobs
from tests import toy
from tests.serial import Serial
from tests.sim import Running, World, digests, request
from workers.execute import Executor
from workers.loaded import load_models

STEPS = 4
ALL = STEPS + 2
PROMPT = "a count big=70000"


async def finished(running: Running, prompt: str = PROMPT, **fields: Any) -> Job:
    return await running.ended((await running.client.submit(request(prompt, steps=STEPS, **fields))).id)


async def log(running: Running, job: str) -> list[JobEvent]:
    return [told.event for told in await running.client.events(job)]


async def steps(running: Running, job: str) -> list[Any]:
    return digests(await running.client.checkpoints(job))


def serially(at: int, **changes: Any) -> list[Any]:
    """All steps of a job whose request changes at one of them, run one after another without an engine."""
    run = Serial(request(PROMPT, steps=STEPS))
    for _ in range(at):
        run.step()
    run.change(**changes)
    while not run.ended:
        run.step()
    return run.made


@pytest.mark.parametrize("at_step", range(ALL + 1))
async def test_a_fork_without_changes_ends_as_its_parent(at_step: int) -> None:
    world = World()
    async with world.engine() as running:
        parent = await finished(running, preview_every=2)
        ran = len(running.workers[0].ran)
        fork = await running.client.fork(parent.id, at_step)
        assert fork.parent == Parent(parent.id, at_step)
        assert (fork.id, fork.request) != (parent.id, None)
        ended = await running.ended(fork.id)

        assert (ended.state, ended.outputs, ended.artifacts) == (State.COMPLETED, parent.outputs, parent.artifacts)
        assert await steps(running, fork.id) == await steps(running, parent.id)
        assert len(running.workers[0].ran) - ran == ALL - at_step
        assert diff(await log(running, parent.id), await log(running, fork.id)) is None
        assert (await check(world.journal)).problems == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"guidance": 3.0},
        {"seed": 8},
        {"prompt": f"{PROMPT} start=2"},
        {"prompt": f"{PROMPT} start=2", "guidance": 0.5, "seed": 9},
    ],
    ids=str,
)
@pytest.mark.parametrize("at_step", range(ALL))
async def test_a_fork_with_changes_is_its_parent_up_to_there_and_then_another(
    at_step: int, changes: dict[str, Any]
) -> None:
    async with World().engine(workers=2) as running:
        parent = await finished(running)
        fork = await running.client.fork(parent.id, at_step, RequestChanges(**changes))
        ended = await running.ended(fork.id)

        assert ended.state is State.COMPLETED
        made, theirs = await steps(running, fork.id), await steps(running, parent.id)
        assert made[:at_step] == theirs[:at_step]
        assert made == serially(at_step, **changes)
        assert made != theirs
        assert await steps(running, parent.id) == theirs
        assert {name: getattr(ended.request, name) for name in changes} == changes


@pytest.mark.parametrize("at_step", [2, 4])
async def test_a_prompt_that_changes_in_the_middle_of_the_count_prepares_again_and_counts_on(at_step: int) -> None:
    async with World().engine() as running:
        parent = await finished(running)
        fork = await running.client.fork(parent.id, at_step, RequestChanges(prompt=f"{PROMPT} start=2"))
        await running.ended(fork.id)
        places = [(step.loop, step.step) for step in await running.client.checkpoints(fork.id)]
        [changed] = [event for event in await log(running, fork.id) if isinstance(event, RequestChanged)]

        counted = [("count", n) for n in range(STEPS)]
        before = [("prepare", 0), *counted[: at_step - 1]]
        assert places == [*before, ("prepare", 0), *counted[at_step - 1 :], ("finish", 0)]
        assert [stage.place.index for stage in changed.route] == [0, 1]


async def test_a_change_that_no_step_depends_on_runs_nothing_again() -> None:
    async with World().engine() as running:
        parent = await finished(running)
        ran = len(running.workers[0].ran)
        fork = await running.client.fork(parent.id, 2, RequestChanges(priority=5, metadata={"a": "b"}))
        assert (await running.ended(fork.id)).request.priority == 5
        assert await steps(running, fork.id) == await steps(running, parent.id)
        assert len(running.workers[0].ran) - ran == ALL - 2


async def test_a_fork_dies_and_recovers_while_an_earlier_node_runs_again() -> None:
    world = World()
    changes = {"prompt": f"{PROMPT} start=2"}
    async with world.engine() as running:
        parent = await finished(running)
        running.workers[0].hold_at = len(running.workers[0].ran) + 1
        fork = await running.client.fork(parent.id, 3, RequestChanges(**changes))
        await running.until(lambda: running.workers[0].gate is not None)
    async with world.engine() as running:
        await running.ended(fork.id)
        assert await steps(running, fork.id) == serially(3, **changes)


@pytest.mark.parametrize("at_step", range(ALL + 1))
async def test_a_fork_of_a_fork_is_as_good_as_its_parent(at_step: int) -> None:
    async with World().engine() as running:
        parent = await finished(running)
        first = await running.client.fork(parent.id, 3, RequestChanges(prompt=f"{PROMPT} start=2"))
        await running.ended(first.id)
        second = await running.client.fork(first.id, at_step)
        await running.ended(second.id)
        whole = await steps(running, first.id if at_step >= 3 else parent.id)

        assert await steps(running, second.id) == whole, "it is the job as it was then, also in what was asked for"


@pytest.mark.parametrize("at_step", range(ALL + 1))
@pytest.mark.parametrize("changes", [{"guidance": 2.0}, {"prompt": f"{PROMPT} start=5"}], ids=str)
async def test_a_fork_with_changes_of_a_fork_with_changes(at_step: int, changes: dict[str, Any]) -> None:
    async with World().engine() as running:
        parent = await finished(running)
        first = await running.client.fork(parent.id, 3, RequestChanges(prompt=f"{PROMPT} start=2"))
        await running.ended(first.id)
        second = await running.client.fork(first.id, at_step, RequestChanges(**changes))
        await running.ended(second.id)

        run = Serial(request(PROMPT, steps=STEPS))
        for n in range(at_step):
            if n == 3:
                run.change(prompt=f"{PROMPT} start=2")
            run.step()
        if at_step == 3:
            run.change(prompt=f"{PROMPT} start=2")
        run.change(**changes)
        while not run.ended:
            run.step()
        assert await steps(running, second.id) == run.made


@pytest.mark.parametrize("prompt", [f"{PROMPT} fail=2", PROMPT])
async def test_a_job_that_failed_or_still_runs_can_be_forked(prompt: str) -> None:
    async with World().engine() as running:
        worker = running.workers[0]
        worker.hold_at = 4
        job = await running.client.submit(request(prompt, steps=STEPS))
        await running.until(lambda: running.engine.results.steps == 3)
        await running.engine.ledger.settled()
        fork = await running.client.fork(job.id, 3, RequestChanges(prompt=PROMPT))
        worker.open()
        ended = await running.ended(fork.id)
        [parent_state, made] = [(await running.ended(job.id)).state, await steps(running, fork.id)]

        assert ended.state is State.COMPLETED
        assert parent_state is (State.FAILED if "fail" in prompt else State.COMPLETED)
        assert made[:3] == (await steps(running, job.id))[:3]


async def test_a_fork_needs_nothing_of_its_parents_log() -> None:
    world = World()
    async with world.engine() as running:
        parent = await finished(running)
        fork = await running.client.fork(parent.id, 3, RequestChanges(guidance=2.0))
        await running.ended(fork.id)
        events = await log(running, fork.id)
        executor = Executor(load_models({"toy": toy.FAMILY}), MemoryBlobs(), stores=False)

        async def execute(unit: WorkUnit, frames: list[bytes]) -> StepResult:
            return executor.run(unit, frames).result

        verdict = await verify(events, toy.FAMILY, execute, Contents(world.journal, world.blobs))
        assert (verdict.equal, verdict.steps, verdict.pruned) == (True, ALL, 0)


async def test_a_fork_from_before_the_numerics_changed_is_exact() -> None:
    world = World()
    async with world.engine() as running:
        running.workers[0].hold_at = 4
        parent = await running.client.submit(request(PROMPT, steps=STEPS))
        await running.until(lambda: running.engine.results.steps == 3)
        await running.engine.ledger.settled()
    async with world.engine(workers=0) as running:
        running.add_worker(fingerprint="another machine")
        assert not (await running.ended(parent.id)).exact
    async with world.engine() as running:
        exact = [(await running.ended((await running.client.fork(parent.id, at)).id)).exact for at in range(ALL + 1)]

    assert exact == [True] * 4 + [False] * (ALL + 1 - 4)


# -- what cannot be forked ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at_step", "changes", "field"),
    [
        (2, {"guidance": 11.0}, "guidance"),
        (2, {"prompt": ""}, "prompt"),
        (2, {"steps": 5}, "steps"),
        (5, {"steps": 5}, "steps"),
        (2, {"seed": -1}, "seed"),
        (ALL, {"guidance": 2.0}, "guidance"),
    ],
)
async def test_what_cannot_be_changed_is_refused_by_name(at_step: int, changes: dict[str, Any], field: str) -> None:
    async with World().engine() as running:
        parent = await finished(running)
        with pytest.raises(InvalidRequest) as refused:
            await running.client.fork(parent.id, at_step, RequestChanges(**changes))

        assert refused.value.field == field
        assert len(await running.client.jobs()) == 1


@pytest.mark.parametrize("at_step", [0, 1])
async def test_the_number_of_steps_can_be_changed_before_they_have_begun(at_step: int) -> None:
    async with World().engine() as running:
        parent = await finished(running)
        fork = await running.client.fork(parent.id, at_step, RequestChanges(steps=7))
        await running.ended(fork.id)
        longer = await running.client.submit(request(PROMPT, steps=7))
        await running.ended(longer.id)

        assert await steps(running, fork.id) == await steps(running, longer.id)


@pytest.mark.parametrize("at_step", [-1, ALL + 1, 10**9])
async def test_a_step_that_there_is_not_is_refused_with_those_there_are(at_step: int) -> None:
    async with World().engine() as running:
        parent = await finished(running)
        with pytest.raises(NoSuchStep, match=f"at_step: {at_step} is no step of job .*: give 0 to {ALL}"):
            await running.client.fork(parent.id, at_step)


async def test_a_step_whose_tensors_are_gone_is_refused_with_the_nearest_that_are_there() -> None:
    world = World()
    async with world.engine() as running:
        parent = await finished(running)
        there = await running.client.checkpoints(parent.id)
        for step in (2, 3):  # as retention would: the log keeps their names
            del world.blobs._data[there[step].tensors["big"].digest]
        for at_step in (3, 4):
            with pytest.raises(TensorsGone) as gone:
                await running.client.fork(parent.id, at_step)
            assert gone.value.nearest == (2, 5)
        assert (await running.ended((await running.client.fork(parent.id, 2)).id)).state is State.COMPLETED


async def test_a_job_that_is_not_there_cannot_be_forked() -> None:
    async with World().engine(workers=0) as running:
        with pytest.raises(JobNotFound):
            await running.client.fork("nope", 0)


async def test_the_same_key_makes_one_fork() -> None:
    async with World().engine() as running:
        parent = await finished(running)
        first, second = [await running.client.fork(parent.id, 2, key="k") for _ in range(2)]
        assert first.id == second.id
        with pytest.raises(KeyReused):
            await running.client.fork(parent.id, 3, key="k")


async def test_a_stopping_engine_forks_nothing() -> None:
    async with World().engine() as running:
        parent = await finished(running)
        running.engine.draining = True
        with pytest.raises(Draining):
            await running.client.fork(parent.id, 2)
