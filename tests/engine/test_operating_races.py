"""What people do to jobs, in races with the job, with each other and with other engines."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from engine.cancel import Outcome as CancelOutcome
from engine.check import check
from engine.errors import NotAllowed, StoreTrouble
from engine.job import State
from engine.operate import Outcome
from store.journal import Journal, Loaded
from store.memory import MemoryJournal
from store.open import open_journal
from tests.engine.operating import VERBS, held, in_state, kinds, near_its_end
from tests.failing_journals import QueuedJournal
from tests.sim import Running, World, assert_unharmed, request


@pytest.mark.parametrize("verb", ["pause", "terminate", "quarantine", "rewind"])
async def test_a_verb_that_races_completion_is_one_of_the_two(verb: str) -> None:
    seen = set()
    for spins in range(40):
        async with near_its_end(spins % 20) as (running, job):
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
        await running.until(lambda: running.engine.results.steps >= 3)
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
