"""What people do to jobs: what each verb makes of a job in each state."""

import pytest

from engine.cancel import Outcome as CancelOutcome
from engine.errors import JobNotFound, NotAllowed, StoreTrouble
from engine.job import State
from engine.operate import Outcome
from tests.engine.operating import VERBS, in_state, kinds
from tests.failing_journals import QueuedJournal
from tests.sim import World, request

# What each verb makes of a job in each state; None where it is not possible.
TABLE: dict[str, dict[State, tuple[Outcome, State] | None]] = {
    "pause": {
        State.QUEUED: (Outcome.DONE, State.PAUSED),
        State.PAUSED: (Outcome.UNCHANGED, State.PAUSED),
        State.QUARANTINED: None,
        State.COMPLETED: None,
        State.FAILED: None,
        State.CANCELLED: None,
    },
    "resume": {
        State.QUEUED: (Outcome.UNCHANGED, State.QUEUED),
        State.PAUSED: (Outcome.DONE, State.QUEUED),
        State.QUARANTINED: None,
        State.COMPLETED: None,
        State.FAILED: None,
        State.CANCELLED: None,
    },
    "retry": {
        State.QUEUED: (Outcome.UNCHANGED, State.QUEUED),
        State.PAUSED: None,
        State.QUARANTINED: None,
        State.COMPLETED: None,
        State.FAILED: (Outcome.DONE, State.QUEUED),
        State.CANCELLED: (Outcome.DONE, State.QUEUED),
    },
    "terminate": {
        State.QUEUED: (Outcome.DONE, State.CANCELLED),
        State.PAUSED: (Outcome.DONE, State.CANCELLED),
        State.QUARANTINED: (Outcome.DONE, State.CANCELLED),
        State.COMPLETED: (Outcome.UNCHANGED, State.COMPLETED),
        State.FAILED: (Outcome.UNCHANGED, State.FAILED),
        State.CANCELLED: (Outcome.UNCHANGED, State.CANCELLED),
    },
    "quarantine": {
        State.QUEUED: (Outcome.DONE, State.QUARANTINED),
        State.PAUSED: (Outcome.DONE, State.QUARANTINED),
        State.QUARANTINED: (Outcome.UNCHANGED, State.QUARANTINED),
        State.COMPLETED: None,
        State.FAILED: (Outcome.DONE, State.QUARANTINED),
        State.CANCELLED: None,
    },
    "release": {
        State.QUEUED: (Outcome.UNCHANGED, State.QUEUED),
        State.PAUSED: None,
        State.QUARANTINED: (Outcome.DONE, State.QUEUED),
        State.COMPLETED: None,
        State.FAILED: None,
        State.CANCELLED: None,
    },
    "rewind": {
        State.QUEUED: (Outcome.DONE, State.QUEUED),
        State.PAUSED: (Outcome.DONE, State.PAUSED),
        State.QUARANTINED: (Outcome.DONE, State.QUARANTINED),
        State.COMPLETED: None,
        State.FAILED: (Outcome.DONE, State.QUEUED),
        State.CANCELLED: (Outcome.DONE, State.QUEUED),
    },
}
CASES = [(verb, state) for verb, states in TABLE.items() for state in states]


@pytest.mark.parametrize(("verb", "state"), CASES)
async def test_a_verb_does_what_the_table_says(verb: str, state: State) -> None:
    world = World()
    job = await in_state(world, state)
    async with world.engine(workers=0, max_active=0) as running:
        expected = TABLE[verb][state]
        before = await kinds(running, job)
        assert (await running.client.job(job)).state is state
        if expected is None:
            with pytest.raises(NotAllowed, match=f"is {state}: {verb} is not possible; possible: "):
                await VERBS[verb](running.client, job)
        else:
            operated = await VERBS[verb](running.client, job)
            assert (operated.outcome, operated.job.state) == expected
            assert (await running.client.job(job)).state is expected[1]
        done = expected is not None and expected[0] is Outcome.DONE
        assert len(await kinds(running, job)) == len(before) + done
        assert not running.engine.ledger.actors


@pytest.mark.parametrize("verb", VERBS)
async def test_a_job_that_is_not_there_is_said_to_be(verb: str) -> None:
    async with World().engine(workers=0) as running:
        with pytest.raises(JobNotFound):
            await VERBS[verb](running.client, "nope")


@pytest.mark.parametrize("verb", VERBS)
async def test_a_store_that_takes_nothing_acknowledges_nothing(verb: str) -> None:
    world = World()
    job = await in_state(world, {"resume": State.PAUSED, "release": State.QUARANTINED}.get(verb, State.FAILED))
    if verb == "pause":
        job = await in_state(world, State.QUEUED)
    journal = QueuedJournal(world.journal)
    async with world.engine(workers=0, max_active=0, journal=journal) as running:
        if verb == "terminate":
            job = await in_state(world, State.PAUSED)
        before = await running.client.job(job)
        journal.refuse = 1
        with pytest.raises(StoreTrouble):
            await VERBS[verb](running.client, job)

        assert await running.client.job(job) == before


@pytest.mark.parametrize("state", [State.PAUSED, State.QUARANTINED])
async def test_a_job_that_is_set_aside_can_be_cancelled(state: State) -> None:
    world = World()
    job = await in_state(world, state)
    async with world.engine() as running:
        assert await running.client.cancel(job) is CancelOutcome.CANCELLED
        assert (await running.client.job(job)).state is State.CANCELLED


async def test_why_a_job_is_set_aside_is_told_until_it_is_not() -> None:
    world = World()
    async with world.engine(workers=0) as running:
        job = await running.client.submit(request())
        assert (await running.client.verbs.pause(job.id, "the disk is being moved")).job.reason.startswith("the disk")
        assert (await running.client.verbs.quarantine(job.id, "odd frames")).job.reason == "odd frames"
        assert (await running.client.verbs.lift(job.id)).job.reason == ""
