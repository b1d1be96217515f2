"""Replay with execution: the first place where log and re-execution part is named."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from cards.family import Components, Made, StepBody
from cards.request import RequestChanges
from cards.wire import StepError, StepResult, WorkPlan, WorkUnit
from engine.contents import Contents
from engine.errors import IllegalMove
from engine.events import JobCompleted, JobEvent, StepCompleted
from engine.replay import Difference, Verdict, diff, verify
from store.blobs import MemoryBlobs
from store.errors import CorruptBlob, MissingBlob
from tests.sim import World, request
from tests.toy import FAMILY, ToyFamily
from workers.execute import Executor
from workers.loaded import load_models

PLACES = [("prepare", 0), *(("count", step) for step in range(4)), ("finish", 0)]


class OtherWeights(ToyFamily):
    """Counts as the toy does, but for step `since` and all after it."""

    def __init__(self, since: int) -> None:
        super().__init__()
        self._since = since

    def bodies(self) -> Mapping[str, StepBody]:
        def count(components: Components, plan: WorkPlan, reads: Mapping[str, Any]) -> Made:
            made = FAMILY.bodies()["count"](components, plan, reads)
            return Made({**made.tensors, "x": made.tensors["x"] + 1}) if plan.step >= self._since else made

        return {**FAMILY.bodies(), "count": count}


class Fresh:
    """A device with nothing on it. It can be told to fail at a step."""

    def __init__(self, family: ToyFamily = FAMILY, fail: tuple[str, int] | None = None) -> None:
        self._executor = Executor(load_models({"toy": family}), MemoryBlobs(), stores=False)
        self._fail = fail

    async def __call__(self, unit: WorkUnit, frames: list[bytes]) -> StepResult:
        if (unit.plan.loop, unit.plan.step) == self._fail:
            return StepResult(unit.id, error=StepError("error", "asked to fail"))
        return self._executor.run(unit, frames).result


class Damaged:
    """Contents in which some digests are gone and others are not what they say."""

    def __init__(self, contents: Contents, missing: Sequence[str] = (), corrupt: Sequence[str] = ()) -> None:
        self._contents, self._missing, self._corrupt = contents, missing, corrupt

    async def get(self, digest: str) -> bytes:
        if digest in self._missing:
            raise MissingBlob(digest)
        if digest in self._corrupt:
            raise CorruptBlob(digest)
        return await self._contents.get(digest)


@pytest.fixture
async def contents() -> Contents:
    return Contents(WORLD.journal, WORLD.blobs)


@pytest.fixture
async def log() -> list[JobEvent]:
    """What a finished job has in its log."""
    async with WORLD.engine() as running:
        job = await running.client.submit(request("a count big=70000", preview_every=2))
        assert (await running.ended(job.id)).terminal
        return [told.event for told in await running.client.events(job.id)]


WORLD = World()


def steps(log: Sequence[JobEvent]) -> list[StepCompleted]:
    return [event for event in log if isinstance(event, StepCompleted)]


def changed(log: Sequence[JobEvent], place: tuple[str, int], **fields: Any) -> list[JobEvent]:
    """The log with one step's event changed."""
    return [
        replace(event, **fields) if isinstance(event, StepCompleted) and (event.node, event.step) == place else event
        for event in log
    ]


async def test_a_job_that_is_executed_again_makes_the_same_bytes(log: list[JobEvent], contents: Contents) -> None:
    seen: list[tuple[str, int]] = []

    verdict = await verify(log, FAMILY, Fresh(), contents, lambda node, step: seen.append((node, step)))

    assert verdict == Verdict(verdict.job, steps=6, tensors=1 + 4 * 2, pruned=0, difference=None)
    assert verdict.equal
    assert seen == PLACES


@pytest.mark.parametrize("place", [("prepare", 0), ("count", 0), ("count", 3)])
async def test_a_log_that_says_something_else_differs_where_it_does(
    log: list[JobEvent], contents: Contents, place: tuple[str, int]
) -> None:
    step = next(event for event in steps(log) if (event.node, event.step) == place)
    name, ref = next(iter(step.tensors.items()))
    other = {**step.tensors, name: replace(ref, digest="0" * 64)}

    verdict = await verify(changed(log, place, tensors=other), FAMILY, Fresh(), contents)

    problem = "re-execution made other bytes"
    assert verdict.difference == Difference(*place, name, problem, logged="0" * 64, found=ref.digest)
    assert not verdict.equal
    assert verdict.steps == PLACES.index(place)


async def test_an_artifact_that_is_not_what_was_made_differs(log: list[JobEvent], contents: Contents) -> None:
    [result] = steps(log)[-1].artifacts
    other = (replace(result, digest="0" * 64),)

    verdict = await verify(changed(log, ("finish", 0), artifacts=other), FAMILY, Fresh(), contents)

    assert verdict.difference is not None
    assert (verdict.difference.node, verdict.difference.what) == ("finish", "result.txt")


async def test_a_tensor_that_nothing_makes_any_more_differs(log: list[JobEvent], contents: Contents) -> None:
    more = steps(log)[0].tensors | {"gone": steps(log)[0].tensors["start"]}

    verdict = await verify(changed(log, ("prepare", 0), tensors=more), FAMILY, Fresh(), contents)

    assert verdict.difference is not None
    assert (verdict.difference.what, verdict.difference.found) == ("gone", "nothing")


@pytest.mark.parametrize("since", range(4))
async def test_other_weights_differ_at_the_first_step_that_they_change(
    log: list[JobEvent], contents: Contents, since: int
) -> None:
    family = OtherWeights(since)

    verdict = await verify(log, family, Fresh(family), contents)

    assert verdict.difference is not None
    assert (verdict.difference.node, verdict.difference.step, verdict.difference.what) == ("count", since, "x")


async def test_a_step_that_fails_this_time_differs(log: list[JobEvent], contents: Contents) -> None:
    verdict = await verify(log, FAMILY, Fresh(fail=("count", 2)), contents)

    assert verdict.difference == Difference("count", 2, "step", "the step failed", "completed", "asked to fail")


async def test_what_is_no_longer_stored_is_counted_and_no_difference(log: list[JobEvent], contents: Contents) -> None:
    missing = [ref.digest for step in steps(log)[:3] for ref in step.tensors.values()]

    verdict = await verify(log, FAMILY, Fresh(), Damaged(contents, missing=missing))

    assert (verdict.equal, verdict.pruned) == (True, len(missing))


async def test_stored_bytes_that_are_not_what_they_say_are_named(log: list[JobEvent], contents: Contents) -> None:
    digest = steps(log)[2].tensors["x"].digest

    verdict = await verify(log, FAMILY, Fresh(), Damaged(contents, corrupt=[digest]))

    assert verdict.difference is not None
    assert (verdict.difference.node, verdict.difference.step, verdict.difference.what) == ("count", 1, "x")
    assert "do not hash" in verdict.difference.problem


async def test_a_job_that_did_not_end_is_executed_as_far_as_it_came(log: list[JobEvent], contents: Contents) -> None:
    begun = log[: log.index(steps(log)[3])]

    verdict = await verify(begun, FAMILY, Fresh(), contents)

    assert (verdict.equal, verdict.steps) == (True, 3)


async def test_a_log_that_does_not_fold_is_an_error(log: list[JobEvent], contents: Contents) -> None:
    with pytest.raises(IllegalMove):
        await verify([log[0], JobCompleted()], FAMILY, Fresh(), contents)


# -- not from the start, and not in one go --------------------------------------------------------------------------


@pytest.mark.parametrize("from_step", range(len(PLACES) + 1))
async def test_a_log_is_executed_from_any_step_on_what_is_stored(
    log: list[JobEvent], contents: Contents, from_step: int
) -> None:
    seen: list[tuple[str, int]] = []

    verdict = await verify(
        log, FAMILY, Fresh(), contents, lambda node, step: seen.append((node, step)), from_step=from_step
    )

    assert (verdict.equal, verdict.steps) == (True, len(PLACES) - from_step)
    assert seen == PLACES[from_step:]


async def test_a_step_whose_start_is_no_longer_stored_cannot_be_started_from(
    log: list[JobEvent], contents: Contents
) -> None:
    gone = steps(log)[2].tensors["x"].digest

    verdict = await verify(log, FAMILY, Fresh(), Damaged(contents, missing=[gone]), from_step=3)

    assert verdict.difference is not None
    assert (verdict.difference.node, verdict.difference.step, verdict.difference.what) == ("count", 2, "state")
    assert gone in verdict.difference.logged


async def test_a_log_with_everything_that_people_did_to_it_is_executed_step_by_step() -> None:
    """Steps that were taken back are executed too: they were made, and on what the log says."""
    world = World()
    async with world.engine() as running:
        worker = running.workers[0]
        worker.hold_at = 5
        parent = await running.client.submit(request("a count big=70000"))
        await running.until(lambda: worker.gate is not None and running.engine.results.steps == 4)
        await running.client.verbs.rewind(parent.id, 2)
        worker.open()
        await running.ended(parent.id)
        fork = await running.client.fork(parent.id, 3, RequestChanges(prompt="a count big=70000 start=2"))
        await running.ended(fork.id)
        logs = {job: [told.event for told in await running.client.events(job)] for job in (parent.id, fork.id)}

    everything = Contents(world.journal, world.blobs)
    for job, executed in ((parent.id, 6 + 2), (fork.id, 6 + 1)):
        verdict = await verify(logs[job], FAMILY, Fresh(), everything)
        assert (verdict.equal, verdict.steps) == (True, executed), verdict.difference
    rewound = await verify(logs[parent.id], FAMILY, Fresh(), everything, from_step=5)
    assert (rewound.equal, rewound.steps) == (True, 3)


# -- two logs -------------------------------------------------------------------------------------------------------


async def log_of(prompt: str = "a count", **fields: Any) -> list[JobEvent]:
    world = World()
    async with world.engine() as running:
        job = await running.ended((await running.client.submit(request(prompt, **fields))).id)
        return [told.event for told in await running.client.events(job.id)]


async def test_two_runs_of_one_request_do_not_differ() -> None:
    assert diff(await log_of(), await log_of()) is None


@pytest.mark.parametrize(
    ("fields", "place"),
    [({"guidance": 2.0}, ("count", 0)), ({"seed": 8}, ("prepare", 0)), ({"steps": 3}, ("count", 3))],
)
async def test_two_logs_differ_where_they_part(fields: dict[str, Any], place: tuple[str, int]) -> None:
    ours, theirs = await log_of(), await log_of(**fields)

    difference = diff(ours, theirs)

    assert difference is not None
    assert (difference.node, difference.step) == place
    if "steps" in fields:
        assert (difference.what, difference.logged, difference.found) == ("step", "count step 3", "finish step 0")
    else:
        assert difference.logged == steps(ours)[place[0] == "count"].tensors[difference.what].digest
        assert difference.found == steps(theirs)[place[0] == "count"].tensors[difference.what].digest


async def test_a_log_that_ends_sooner_differs_at_its_end() -> None:
    whole, failed = await log_of(), await log_of("a count fail=2")

    difference = diff(whole, failed)

    assert difference is not None
    assert (difference.node, difference.step, difference.found) == ("count", 2, "nothing")
