"""A short chaos on either store, and a checker that finds what it should."""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from engine.contents import Contents
from engine.events import JobReleased, decode, encode, tag
from store.blobs import MemoryBlobs
from store.journal import Event
from store.memory import MemoryJournal
from tests.chaos import checker, faults
from tests.chaos.callers import Answered
from tests.chaos.checker import Log
from tests.chaos.scenario import Scenario, run
from tests.sim import World, request

SHORT = (Scenario("sqlite", 1, 11, 18.0), Scenario("postgres", 2, 12, 18.0))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SHORT, ids=lambda scenario: scenario.store)
async def test_chaos_leaves_every_log_whole(tmp_path: Path, scenario: Scenario) -> None:
    outcome = await run(scenario, tmp_path)

    assert not outcome.problems, f"{outcome}; again: {scenario.again}"
    assert outcome.faults.total() >= 12
    assert outcome.jobs["completed"] > 5


def test_every_kind_of_fault_comes_before_one_comes_again() -> None:
    kinds = list(faults.FAULTS)
    plan = faults.drawn(random.Random(1), 60.0, kinds)

    assert plan == faults.drawn(random.Random(1), 60.0, kinds)
    assert set(Counter(fault.kind for fault in plan[: len(kinds)]).values()) == {1}
    assert plan != faults.drawn(random.Random(2), 60.0, kinds)


# The checker


@pytest.fixture(scope="module")
def whole() -> Log:
    """The log of a job that nothing happened to."""
    return anyio.run(undisturbed)


async def undisturbed() -> Log:
    journal = MemoryJournal()
    async with World(journal).engine() as running:
        await running.ended((await running.client.submit(request(steps=5))).id)
        [log] = (await checker.read(journal)).values()
    return log


def test_a_log_that_nothing_happened_to_is_whole(whole: Log) -> None:
    assert told(whole, whole.events) == []


def test_a_missing_event_is_seen(whole: Log) -> None:
    found = told(whole, [*whole.events[:3], *whole.events[4:]])

    assert "versions have gaps" in found
    assert any("missing" in problem for problem in found)


def test_a_changed_event_is_seen(whole: Log) -> None:
    assert any("is not what was written" in problem for problem in told(whole, with_step(whole, 2, seconds=99.0)))


def test_a_writer_of_the_past_is_seen(whole: Log) -> None:
    events = [*whole.events[:-1], replace(whole.events[-1], epoch=0)]

    assert "events are not in the order of epoch" in told(whole, events)


def test_a_step_that_was_made_twice_is_seen(whole: Log) -> None:
    assert "a step is there twice" in told(whole, with_step(whole, 3, step=1))


def test_a_step_that_made_something_else_is_seen(whole: Log) -> None:
    found = told(whole, with_step(whole, 2, scalars={"sum": 0.5}))

    assert "its steps are not those of the same request alone" in found


def test_a_step_of_somebody_elses_worker_is_seen(whole: Log) -> None:
    assert any("has a step of there-1" in problem for problem in told(whole, with_step(whole, 2, worker="there-1")))


def test_two_owners_of_one_epoch_are_seen(whole: Log) -> None:
    stranger = JobReleased(engine="there-2")
    events = [*whole.events[:-1], replace(whole.events[-1], type=tag(stranger), body=encode(stranger).body)]

    assert any("is engine's and there-2's" in problem for problem in told(whole, events))


def test_a_job_that_nobody_goes_on_with_is_seen(whole: Log) -> None:
    assert any("all has come to rest" in problem for problem in told(whole, whole.events[:-1]))


def test_a_job_that_completed_too_early_is_seen(whole: Log) -> None:
    ended = [event for event in whole.events if event.type == "job_completed"]
    events = [event for event in whole.events[:8] if event.type != "job_completed"]

    assert any("completed after" in problem for problem in told(whole, [*events, *ended]))


def test_what_people_were_told_must_be_in_the_log(whole: Log) -> None:
    read = [(event.position, event.version, event.type) for event in whole.events]
    good = Answered(read={"j": read}, ended={"j"}, told=[("j", "cancel", "already_terminal")])
    short = Answered(read={"j": read[:-1]}, ended={"j"})
    doubled = Answered(read={"j": [read[0], *read[:-1]]})
    paused = Answered(told=[("j", "pause", "done")])

    assert list(checker.problems_of_answers({"j": whole}, good)) == []
    for answered in (short, doubled, paused):
        assert len(list(checker.problems_of_answers({"j": whole}, answered))) == 1


def test_a_key_without_its_job_and_a_job_without_its_key_are_seen(whole: Log) -> None:
    order = {"prompt": request().prompt}
    good = Answered(orders={"k": order}, jobs={"k": "j"})
    other = Answered(orders={"k": {"prompt": "another"}}, jobs={"k": "j"})
    lost = Answered(orders={"k": order}, jobs={"k": "gone"})

    assert list(checker.problems_of_keys({"j": whole}, good)) == []
    assert list(checker.problems_of_keys({"j": whole}, other)) == ["j is not what was ordered with k"]
    assert len(list(checker.problems_of_keys({"j": whole}, lost))) == 2


async def test_a_blob_that_is_gone_is_seen(whole: Log) -> None:
    gone = [problem async for problem in checker.missing({"j": whole}, Contents(MemoryJournal(), MemoryBlobs()))]

    assert len(gone) > 5


def told(log: Log, events: Sequence[Event]) -> list[str]:
    """Names of `there` are on another host than all others."""
    return list(checker.problems_of(Log(events, log.head), lambda name: "there" if "there" in name else "here"))


def with_step(log: Log, number: int, **changes: Any) -> list[Event]:
    """The log, but for one step of it."""
    at = [place for place, event in enumerate(log.events) if event.type == "step_completed"][number]
    step = decode(log.events[at])
    return [
        *log.events[:at],
        replace(log.events[at], body=encode(replace(step, **changes)).body),
        *log.events[at + 1 :],
    ]
