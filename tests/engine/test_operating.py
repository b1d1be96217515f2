"""What people do to jobs: in every state, at every step, in races with the job and each other, across restarts."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from engine.cancel import Outcome as CancelOutcome
from engine.check import check
from engine.client import Client
from engine.errors import JobNotFound, NoSuchStep, NotAllowed, StoreTrouble, TensorsGone, Unrunnable
from engine.job import Job, State
from engine.operate import Operated, Outcome
from store.blobs import MemoryBlobs
from store.errors import StoreUnavailable
from store.journal import Journal, Loaded
from store.memory import MemoryJournal
from store.open import open_journal
from tests import toy
from tests.sim import QueuedJournal, Running, World, assert_unharmed, digests, request

STEPS = 4
ALL = STEPS + 2
"""Steps of the whole program."""

Verb = Callable[[Client, str], Awaitable[Operated]]

VERBS: dict[str, Verb] = {
    "pause": lambda client, job: client.verbs.pause(job, "why"),
    "resume": lambda client, job: client.verbs.resume(job),
    "retry": lambda client, job: client.verbs.retry(job),
    "terminate": lambda client, job: client.verbs.terminate(job),
    "quarantine": lambda client, job: client.verbs.quarantine(job, "why"),
    "release": lambda client, job: client.verbs.lift(job),
    "rewind": lambda client, job: client.verbs.rewind(job, 0),
}

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


async def whole() -> Any:
    """How a job ends that nobody touches."""
    async with World().engine() as running:
        return await ending(running, (await running.client.submit(request(steps=STEPS))).id)


async def ending(running: Running, job_id: str) -> Any:
    job = await running.ended(job_id)
    return job.state, job.outputs, job.artifacts, digests(await running.client.checkpoints(job_id))


async def in_state(world: World, state: State) -> str:
    """A job in this state, with nobody at it."""
    if state in (State.COMPLETED, State.FAILED):
        async with world.engine() as running:
            prompt = "a count fail=2" if state is State.FAILED else "a count"
            return (await running.ended((await running.client.submit(request(prompt, steps=STEPS))).id)).id
    async with world.engine(workers=0, max_active=0) as running:
        job = await running.client.submit(request(steps=STEPS))
        match state:
            case State.PAUSED:
                await running.client.verbs.pause(job.id)
            case State.QUARANTINED:
                await running.client.verbs.quarantine(job.id)
            case State.CANCELLED:
                await running.client.cancel(job.id)
        return job.id


async def kinds(running: Running, job: str) -> list[str]:
    return [told.type for told in await running.client.events(job)]


async def held(running: Running, units: int, **fields: Any) -> Job:
    """A job whose worker holds on to the answer of its `units`-th step; all before are on disk."""
    [worker] = running.workers
    worker.hold_at = units or None
    job = await running.client.submit(request(steps=STEPS, **fields))
    await running.until(lambda: len(worker.ran) >= units and running.engine.steps >= units - 1)
    await running.engine.ledger.settled()
    return job


# -- one verb at a time ---------------------------------------------------------------------------------------------


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


# -- pause and resume -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("units", range(ALL + 1))
async def test_a_job_paused_at_any_step_stops_within_those_that_are_out_and_ends_the_same(units: int) -> None:
    async with World().engine() as running:
        worker = running.workers[0]
        job = await held(running, units)
        paused = await running.client.verbs.pause(job.id)
        assert paused.job.state is State.PAUSED
        worker.open()
        await running.until(lambda: job.id not in running.engine.ledger.actors)
        ran = len(worker.ran)
        await running.until(lambda: not worker.executor.resident.held().tensors)
        await anyio.sleep(0.05)  # reconciling leaves it alone
        assert len(worker.ran) == ran
        there = await running.client.job(job.id)
        if there.state is State.PAUSED:
            assert len(await running.client.checkpoints(job.id)) == ran <= units + 1
            assert (await running.client.verbs.resume(job.id)).outcome is Outcome.DONE

        assert await ending(running, job.id) == await whole()
        assert len(worker.ran) == ALL, "a step was run twice"
        await assert_unharmed(running)


async def test_a_job_paused_and_resumed_while_a_step_runs_keeps_that_step() -> None:
    async with World().engine() as running:
        worker = running.workers[0]
        job = await held(running, 1)
        await running.client.verbs.pause(job.id)
        await running.client.verbs.pause(job.id)
        resumed = await running.client.verbs.resume(job.id)
        assert resumed.job.state is State.RUNNING
        worker.open()

        assert await ending(running, job.id) == await whole()
        assert len(worker.ran) == ALL


async def test_the_last_step_of_a_paused_job_completes_it() -> None:
    async with World().engine() as running:
        job = await held(running, ALL)
        await running.client.verbs.pause(job.id)
        running.workers[0].open()

        assert await ending(running, job.id) == await whole()


@pytest.mark.parametrize("units", range(1, ALL + 1))
async def test_a_paused_job_survives_its_engine_and_goes_on_in_another(units: int) -> None:
    world = World()
    async with world.engine() as running:
        job = await held(running, units)
        await running.client.verbs.pause(job.id)
    async with world.engine() as running:
        await anyio.sleep(0.05)
        assert (await running.client.job(job.id)).state is State.PAUSED
        assert running.workers[0].ran == []
        await running.client.verbs.resume(job.id)

        assert await ending(running, job.id) == await whole()


async def test_a_paused_job_whose_worker_dies_stays_paused_and_leaves() -> None:
    async with World().engine() as running:
        worker = running.workers[0]
        job = await held(running, 1)
        await running.client.verbs.pause(job.id)
        await running.engine.lose(worker.name, "was killed by signal 9")
        await running.until(lambda: job.id not in running.engine.ledger.actors)
        assert (await running.client.job(job.id)).state is State.PAUSED
        running.add_worker()
        await running.client.verbs.resume(job.id)

        assert await ending(running, job.id) == await whole()


async def test_a_step_of_a_paused_job_that_the_blob_store_refused_is_run_again_after_its_resume() -> None:
    class Full(MemoryBlobs):
        full = True

        def put_named(self, blobs: Mapping[str, bytes]) -> None:
            if self.full:
                raise StoreUnavailable("the disk is full")
            super().put_named(blobs)

    world = World()
    world.blobs = blobs = Full()
    async with world.engine() as running:
        job = await held(running, 2, prompt="a count big=70000")
        await running.client.verbs.pause(job.id)
        running.workers[0].open()
        await running.until(lambda: job.id not in running.engine.ledger.actors)
        blobs.full = False
        await running.client.verbs.resume(job.id)

        assert (await running.ended(job.id)).state is State.COMPLETED
        await assert_unharmed(running)


# -- terminate and quarantine ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["terminate", "quarantine"])
@pytest.mark.parametrize("units", range(1, ALL + 1))
async def test_a_job_is_stopped_at_once_and_what_still_runs_decides_nothing(verb: str, units: int) -> None:
    async with World().engine() as running:
        job = await held(running, units)
        await VERBS[verb](running.client, job.id)
        assert job.id not in running.engine.ledger.actors
        steps = await running.client.checkpoints(job.id)
        assert len(steps) == units - 1
        running.workers[0].open()
        await assert_unharmed(running)

        assert await running.client.checkpoints(job.id) == steps
        again = "retry" if verb == "terminate" else "release"
        assert (await VERBS[again](running.client, job.id)).job.state is State.QUEUED
        assert await ending(running, job.id) == await whole()


async def test_a_cancel_that_hangs_is_ended_by_a_terminate() -> None:
    async with World().engine() as running:
        job = await held(running, 1)
        assert await running.client.cancel(job.id) is CancelOutcome.CANCELLING
        assert (await running.client.verbs.terminate(job.id)).job.state is State.CANCELLED
        running.workers[0].open()
        await assert_unharmed(running)


# -- retry ----------------------------------------------------------------------------------------------------------


class Flaky(toy.ToyFamily):
    """Fails at one step until it is mended."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = True

    def bodies(self) -> Any:
        def count(components: Any, plan: Any, reads: Any) -> Any:
            if self.broken and plan.step == 2:
                raise ValueError("out of luck")
            return toy.FAMILY.bodies()["count"](components, plan, reads)

        return {**toy.FAMILY.bodies(), "count": count}


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_job_that_failed_goes_on_at_the_step_that_failed(restarted: bool) -> None:
    family = Flaky()
    world = World(families=(family,))
    async with world.engine() as running:
        job = await running.ended((await running.client.submit(request(steps=STEPS))).id)
        assert job.failure is not None
        family.broken = False
        if not restarted:
            await running.client.verbs.retry(job.id, "mended")
            assert await ending(running, job.id) == await whole()
    if restarted:
        async with world.engine() as running:
            await running.client.verbs.retry(job.id, "mended")
            assert await ending(running, job.id) == await whole()
            assert len(running.workers[0].ran) == ALL - 3
    async with world.engine(workers=0) as running:
        job = await running.client.job(job.id)
        assert (job.failure, job.attempt) == (None, 2)


async def test_a_job_that_was_cancelled_may_be_retried_and_the_watchers_hear_of_it() -> None:
    async with World().engine() as running:
        job = await held(running, 3)
        await running.client.cancel(job.id)
        running.workers[0].open()
        assert (await running.ended(job.id)).state is State.CANCELLED
        seen = (await running.client.events(job.id))[-1].position
        await running.client.verbs.retry(job.id)
        heard = [told.type async for page in running.client.watch(job.id, after=seen) for told in page]

        assert (heard[0], heard[-1]) == ("job_retried", "job_completed")
        assert await ending(running, job.id) == await whole()


async def test_a_retry_whose_tensors_are_gone_says_where_there_are_some() -> None:
    world = World()
    async with world.engine() as running:
        job = await running.ended((await running.client.submit(request("a count big=70000 fail=3"))).id)
        steps = await running.client.checkpoints(job.id)
    world.blobs._data = {d: b for d, b in world.blobs._data.items() if d == steps[2].tensors["big"].digest}
    async with world.engine(workers=0) as running:
        with pytest.raises(TensorsGone, match=r"after step 4 of job .* no longer stored; the nearest are of 3$"):
            await running.client.verbs.retry(job.id)
        with pytest.raises(TensorsGone, match=r"after step 2 of .*; the nearest are of 1 and 3$"):
            await running.client.verbs.rewind(job.id, 2)
        assert (await running.client.verbs.rewind(job.id, 3)).job.state is State.QUEUED


async def test_a_job_of_other_weights_cannot_be_retried_here() -> None:
    world = World()
    job = await in_state(world, State.FAILED)
    world.families = (toy.ToyFamily(weights="other"),)
    async with world.engine(workers=0) as running:
        with pytest.raises(Unrunnable, match="pins weights"):
            await running.client.verbs.retry(job)


# -- rewind ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to_step", range(ALL))
@pytest.mark.parametrize("state", ["running", "paused", "failed", "cancelling"])
async def test_a_job_rewound_to_any_step_ends_as_if_it_had_not_been(state: str, to_step: int) -> None:
    family = Flaky()
    family.broken = state == "failed"
    async with World(families=(family,)).engine() as running:
        if state == "failed":
            job = await running.ended((await running.client.submit(request(steps=STEPS, preview_every=1))).id)
            family.broken = False
        else:
            job = await held(running, 5, preview_every=1)
        if state == "paused":
            await running.client.verbs.pause(job.id)
        if state == "cancelling":
            assert await running.client.cancel(job.id) is CancelOutcome.CANCELLING
        there = len(await running.client.checkpoints(job.id))
        if to_step > there:
            with pytest.raises(NoSuchStep, match=f"has completed {there}: give 0 to {there}"):
                await running.client.verbs.rewind(job.id, to_step)
            return
        rewound = await running.client.verbs.rewind(job.id, to_step)
        running.workers[0].open()
        if state == "paused":
            assert rewound.job.state is State.PAUSED
            await running.client.verbs.resume(job.id)
        job = await running.ended(job.id)
        steps = digests(await running.client.checkpoints(job.id))

        assert (job.state, job.outputs, steps) == ((await whole())[0], (await whole())[1], (await whole())[3])
        await assert_unharmed(running)


async def test_a_rewind_moves_the_epoch_on_so_that_what_is_out_decides_nothing() -> None:
    async with World().engine() as running:
        job = await held(running, 4)
        before = (await running.engine.ledger.find(job.id)).epoch
        await running.client.verbs.rewind(job.id, 1)
        events = await running.world.journal.read(f"job/{job.id}")
        [rewound] = [event for event in events if event.type == "job_rewound"]

        assert rewound.epoch == before + 1
        running.workers[0].open()
        assert await ending(running, job.id) == await whole()


async def test_artifacts_of_steps_that_were_taken_back_are_not_listed() -> None:
    world = World()
    async with world.engine() as running:
        job = await running.ended((await running.client.submit(request("a count fail=3", preview_every=2))).id)
        last = job.artifacts["preview.txt"]
    async with world.engine(workers=0, max_active=0) as running:
        earlier = await running.client.verbs.rewind(job.id, 2)
        assert earlier.job.artifacts["preview.txt"] != last
        assert (await running.client.verbs.rewind(job.id, 1)).job.artifacts == {}
        assert earlier.job.failure is None


# -- in a race ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["pause", "terminate", "quarantine", "rewind"])
async def test_a_verb_that_races_completion_is_one_of_the_two(verb: str) -> None:
    seen = set()
    for spins in range(40):
        async with World().engine() as running:
            job = await running.client.submit(request(steps=1))
            while len(running.workers[0].ran) < 3:
                await anyio.lowlevel.checkpoint()
            for _ in range(spins % 20):
                await anyio.lowlevel.checkpoint()
            try:
                outcome = (await VERBS[verb](running.client, job.id)).outcome
            except NotAllowed:
                outcome = Outcome.UNCHANGED
            seen.add(outcome)
            job = await running.client.job(job.id)
            if outcome is Outcome.UNCHANGED:
                assert job.state is State.COMPLETED
            if verb == "rewind":
                await running.ended(job.id)
            if verb == "pause" and outcome is Outcome.DONE:
                await running.until(lambda job=job: job.id not in running.engine.ledger.actors)
            assert (await kinds(running, job.id)).count("job_completed") <= 1
            if verb != "rewind" or (await running.client.job(job.id)).state is State.COMPLETED:
                await assert_unharmed(running)
    assert seen == {Outcome.DONE, Outcome.UNCHANGED}, "the race was not run from both sides"


@asynccontextmanager
async def journals(kind: str, folder: Path) -> AsyncIterator[Journal]:
    """One that answers in turn, and one whose reads take their time, so that others may write meanwhile."""
    if kind == "memory":
        yield MemoryJournal()
    else:
        async with open_journal(f"sqlite:///{folder / 'keyframe.db'}") as journal:
            yield journal


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_verbs_of_many_at_once_leave_a_log_that_folds_and_a_job_that_ends(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with journals(kind, tmp_path) as journal:
        world = World(journal)
        for seed in range(12):
            async with world.engine(workers=2, journal=QueuedJournal(journal)) as running:
                await at_once(running, seed)
        assert (await check(journal)).problems == ()
    assert "append failed" not in caplog.text, "an engine got into its own way"


async def at_once(running: Running, seed: int) -> None:
    job = await running.client.submit(request(steps=30, seed=seed))

    async def one(name: str, spins: int) -> None:
        for _ in range(spins):
            await anyio.lowlevel.checkpoint()
        with suppress(NotAllowed, StoreTrouble):
            await VERBS[name](running.client, job.id)

    async with anyio.create_task_group() as tasks:
        for n, name in enumerate([*VERBS, *VERBS]):
            tasks.start_soon(one, name, (n * 7 + seed * 13) % 60)
    for name in ("release", "resume", "retry"):
        await one(name, 0)
    job = await running.ended(job.id)
    assert job.state in (State.COMPLETED, State.CANCELLED)
    await assert_unharmed(running)


async def test_a_verb_that_another_writer_overtakes_looks_again() -> None:
    world = World()
    job = await in_state(world, State.QUEUED)
    async with world.engine(workers=0, max_active=0) as first, world.engine(workers=0, max_active=0) as second:
        stale = await first.engine.ledger.find(job)
        await second.client.verbs.pause(job)
        first.engine.ledger.find = overtaken(first.engine.ledger.find, stale)  # type: ignore[method-assign]

        assert (await first.client.verbs.pause(job)).outcome is Outcome.UNCHANGED


class Meanwhile:
    """A journal in which something happens once between a load and its return."""

    def __init__(self, inner: Journal) -> None:
        self._inner = inner
        self.happens: Callable[[], Awaitable[Any]] | None = None

    async def load(self, stream: str) -> Loaded | None:
        loaded = await self._inner.load(stream)
        if self.happens is not None:
            happens, self.happens = self.happens, None
            await happens()
        return loaded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


async def test_what_happens_while_a_log_is_read_is_seen(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    journal = Meanwhile(world.journal)
    job = await in_state(world, State.QUEUED)
    async with world.engine(workers=0, max_active=0, journal=journal) as running:
        journal.happens = lambda: running.client.verbs.pause(job)
        assert (await running.client.verbs.pause(job)).outcome is Outcome.UNCHANGED
        journal.happens = lambda: running.client.verbs.terminate(job)
        assert await running.client.cancel(job) is CancelOutcome.ALREADY_TERMINAL
        assert (await kinds(running, job))[-2:] == ["job_paused", "job_terminated"]
    assert "append failed" not in caplog.text


def overtaken(find: Any, stale: Any) -> Any:
    """What was found before another wrote, once."""
    left = [stale]

    async def found(job_id: str) -> Any:
        return left.pop() if left else await find(job_id)

    return found


async def test_a_caller_that_goes_away_changes_nothing() -> None:
    world = World()
    journal = QueuedJournal(world.journal)
    async with world.engine(journal=journal) as running:
        job = await held(running, 3)
        journal.held = True
        with anyio.move_on_after(0.02):
            await running.client.verbs.pause(job.id)
        journal.release()
        running.workers[0].open()
        await running.until(lambda: job.id not in running.engine.ledger.actors)

        assert (await running.client.job(job.id)).state in (State.PAUSED, State.COMPLETED)
        await assert_unharmed(running)


@pytest.mark.parametrize("state", [State.RUNNING, State.CANCELLING])
async def test_a_pin_of_a_job_that_a_dead_engine_left_ends_nobodys_engine(state: State) -> None:
    world = World()
    async with world.engine() as running:
        running.workers[0].hold_at = 4
        job = (await running.client.submit(request(steps=6))).id
        await running.until(lambda: running.engine.steps >= 3)
        if state is State.CANCELLING:
            await running.client.cancel(job)
        await running.engine.ledger.settled()
    async with world.engine(workers=0, reconcile_s=3600.0, max_active=0) as looking:
        assert (await looking.client.job(job)).state is state
        assert (await looking.client.verbs.pin(job, 2)).outcome is Outcome.DONE

    async with world.engine() as running:
        ended = await running.ended(job)
        expected = State.COMPLETED if state is State.RUNNING else State.CANCELLED
        assert (ended.state, set(ended.pins)) == (expected, {2})
