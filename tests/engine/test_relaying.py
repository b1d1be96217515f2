"""Verbs that reach an engine which does not drive the job: the one that does keeps it, and the step that it is in."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import msgspec
import pytest

from engine.client import Client
from engine.errors import EngineError, NoAnswer, NoSuchPlace, NoSuchStep, NotAllowed, StoreTrouble
from engine.job import State
from engine.operate import Outcome
from engine.refusals import TAGS, Refused, refused, to_error
from engine.relay import ASKS, PATIENCE_S, VerbAsked
from store.errors import StoreUnavailable
from store.journal import Append, Journal, NewEvent
from store.memory import MemoryJournal
from tests.failing_journals import QueuedJournal
from tests.sim import Running, SimClock, World, assert_unharmed, digests, request

STEPS = 4
ALL = STEPS + 2

Verb = Callable[[Client, str], Awaitable[Any]]


@asynccontextmanager
async def two_engines(
    *, journal: Callable[[Journal], Journal] = lambda journal: journal
) -> AsyncIterator[tuple[Running, Running]]:
    """One that has a worker, and one that has none. `journal` is made of the store for the first."""
    clock = SimClock()
    world = World(MemoryJournal(clock.monotonic, shared=True), clock=clock)
    first = world.engine(name="one", journal=journal(world.journal))
    async with first as one, world.engine(name="two", workers=0) as two:
        for running in (one, two):
            await running.until(lambda running=running: running.engine.lease.held)
        yield one, two


async def held(running: Running, units: int) -> str:
    """A job whose worker holds on to the answer of its `units`-th step."""
    running.workers[0].hold_at = units
    job = await running.client.submit(request(steps=STEPS))
    await running.until(lambda: running.workers[0].gate is not None and running.engine.results.steps >= units - 1)
    await running.engine.ledger.settled()
    return job.id


async def whole() -> Any:
    async with World().engine() as running:
        job = await running.ended((await running.client.submit(request(steps=STEPS))).id)
        return digests(await running.client.checkpoints(job.id))


async def pause_and_resume(client: Client, job: str) -> None:
    await client.verbs.pause(job)
    await client.verbs.resume(job)


NOTHING_STOPS: dict[str, Verb] = {
    "resume": lambda client, job: client.verbs.resume(job),
    "retry": lambda client, job: client.verbs.retry(job),
    "move to its pool": lambda client, job: client.verbs.migrate(job, pool="default"),
    "plan of a move": lambda client, job: client.verbs.migrate(job, engine="two", dry_run=True),
    "pause": lambda client, job: client.verbs.pause(job),
}


@pytest.mark.parametrize("units", [1, 3, ALL - 1])
@pytest.mark.parametrize("verb", NOTHING_STOPS)
async def test_a_verb_at_another_engine_costs_the_owner_no_step(verb: str, units: int) -> None:
    async with two_engines() as (one, two):
        job = await held(one, units)
        with suppress(NoSuchPlace):  # the other engine has no workers: the plan of a move there is refused
            await NOTHING_STOPS[verb](two.client, job)
        epoch = one.engine.ledger.actors[job].epoch
        one.workers[0].open()
        if verb == "pause":
            await two.until(lambda: job not in one.engine.ledger.actors)
            await two.client.verbs.resume(job)
        ended = await two.ended(job)

        assert epoch == 1, "nobody has taken the job away"
        assert ended.state is State.COMPLETED
        assert len(one.workers[0].ran) == ALL, "no step is run twice"
        assert digests(await two.client.checkpoints(job)) == await whole()
        assert await two.world.journal.streams(ASKS) == [], "what was asked is forgotten once it is answered"
        await assert_unharmed(one)


STOPS: dict[str, tuple[Verb, State]] = {
    "pause": (lambda client, job: client.verbs.pause(job, "why"), State.PAUSED),
    "cancel": (lambda client, job: client.cancel(job), State.CANCELLED),
    "terminate": (lambda client, job: client.verbs.terminate(job), State.CANCELLED),
    "quarantine": (lambda client, job: client.verbs.quarantine(job, "why"), State.QUARANTINED),
}


@pytest.mark.parametrize("verb", STOPS)
async def test_a_job_is_stopped_at_another_engine_by_the_one_that_drives_it(verb: str) -> None:
    act, state = STOPS[verb]
    async with two_engines() as (one, two):
        job = await held(one, 3)
        await act(two.client, job)
        one.workers[0].open()
        await one.until(lambda: job not in one.engine.ledger.actors)

        assert (await two.client.job(job)).state is state
        events = await two.client.events(job)
        assert [told.type for told in events if told.type in ("job_admitted", "job_recovered")] == ["job_admitted"]
        await assert_unharmed(one)


async def test_a_job_is_rewound_at_another_engine_by_the_one_that_drives_it() -> None:
    async with two_engines() as (one, two):
        job = await held(one, 4)
        rewound = await two.client.verbs.rewind(job, 1)
        one.workers[0].open()
        ended = await two.ended(job)

        assert (rewound.outcome, ended.state) == (Outcome.DONE, State.COMPLETED)
        assert digests(await two.client.checkpoints(job)) == await whole()


async def test_a_job_moves_to_the_pool_of_the_engine_that_drives_it_whoever_is_asked() -> None:
    async with two_engines() as (one, two):
        one.add_worker(pool="other")
        await one.until(lambda: len(one.engine.fleet.seats) == 2)
        job = await held(one, 3)
        ran = len(one.workers[0].ran)
        moved = await two.client.verbs.migrate(job, **await two.client.destination("other"))
        one.workers[0].open()
        await two.ended(job)

        assert (moved.outcome, moved.destination) == (Outcome.DONE, "pool:other")
        assert len(one.workers[0].ran) <= ran + 1
        with pytest.raises(NoSuchPlace):
            await two.client.destination("engine:")


async def test_what_the_owner_refuses_is_refused_in_its_words() -> None:
    async with two_engines() as (one, two):
        job = await held(one, 3)
        with pytest.raises(NoSuchStep, match="which has completed 2: give 0 to 2") as no_step:
            await two.client.verbs.rewind(job, 9)
        with pytest.raises(NotAllowed, match="is running: move away is not possible") as refusal:
            await two.client.verbs.move_away(job, 1, "there")
        with pytest.raises(NoSuchPlace, match="no worker of a pool 'nope' is here; there are: default"):
            await two.client.verbs.migrate(job, pool="nope")
        one.workers[0].open()

        assert no_step.value.field == "to_step"
        assert (refusal.value.job, refusal.value.verb, refusal.value.state) == (job, "move away", "running")
        assert (await two.ended(job)).state is State.COMPLETED


async def test_an_engine_that_dies_over_a_request_leaves_the_job_to_the_one_that_was_asked() -> None:
    async with two_engines() as (one, two):
        job = await held(one, 3)
        one.engine.duties.clear()
        one.tasks.cancel_scope.cancel()
        paused: list[Any] = []

        async def pause() -> None:
            paused.append(await two.client.verbs.pause(job))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pause)
            await two.until(lambda: bool(asks_now(two)))
            two.world.clock.advance(11.0)  # type: ignore[attr-defined]
            await two.engine.renew()

        assert paused[0].outcome is Outcome.DONE
        assert (await two.client.job(job)).state is State.PAUSED
        assert asks_now(two) == []


def asks_now(running: Running) -> list[str]:
    return [name for name in running.world.journal._heads if name.startswith(ASKS)]  # type: ignore[attr-defined]


async def test_a_live_engine_that_does_not_answer_is_named_and_nothing_is_left_for_it_to_do() -> None:
    clock = SimClock()
    world = World(MemoryJournal(clock.monotonic, shared=True), clock=clock)
    async with world.engine(name="two", workers=0) as two:
        await two.until(lambda: two.engine.lease.held)
        await world.journal.hold_lease("one", ttl_s=1e6, models=("toy",))  # of a release that knows no requests
        job = await two.client.submit(request())
        await two.client.verbs.pause(job.id)
        await two.client.verbs.migrate(job.id, engine="one")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(resumed_in_vain, two, job.id)
            await two.until(lambda: bool(asks_now(two)))
            clock.advance(PATIENCE_S)

        assert asks_now(two) == []
        assert (await two.client.job(job.id)).state is State.PAUSED


async def resumed_in_vain(running: Running, job: str) -> None:
    with pytest.raises(NoAnswer, match="engine one drives the job and does not answer"):
        await running.client.verbs.resume(job)


async def test_who_asks_and_goes_away_takes_the_request_along() -> None:
    clock = SimClock()
    world = World(MemoryJournal(clock.monotonic, shared=True), clock=clock)
    async with world.engine(name="two", workers=0) as two:
        await two.until(lambda: two.engine.lease.held)
        await world.journal.hold_lease("one", ttl_s=1e6, models=("toy",))
        job = await two.client.submit(request())
        await two.client.verbs.pause(job.id)
        await two.client.verbs.migrate(job.id, engine="one")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(two.client.verbs.resume, job.id)
            await two.until(lambda: bool(asks_now(two)))
            tasks.cancel_scope.cancel()

        assert asks_now(two) == []


async def test_what_was_asked_of_engines_that_are_gone_is_forgotten_when_one_starts() -> None:
    clock = SimClock()
    world = World(MemoryJournal(clock.monotonic, shared=True), clock=clock)
    await world.journal.hold_lease("alive", ttl_s=1e6)
    for engine in ("gone", "alive", "two"):
        async with world.engine(name="asker", workers=0) as asker, anyio.create_task_group() as tasks:
            relay = asker.client.verbs._relay
            tasks.start_soon(relay._say, f"{ASKS}{engine}/asker-1", 0, asked())
    async with world.engine(name="two", workers=0) as two:
        await two.until(lambda: asks_now(two) == [f"{ASKS}alive/asker-1"])


def asked() -> VerbAsked:
    return VerbAsked(verb="pause", job="job-0001", arguments={}, by="asker")


class Forgetful(QueuedJournal):
    """A journal that refuses the words of requests, after writing them."""

    def append(self, append: Append) -> Awaitable[Any]:
        done = super().append(append)
        return refuse(done) if append.stream.startswith(ASKS) and self.refusals > 0 else done

    refusals = 0


async def refuse(done: Awaitable[Any]) -> Any:
    await done
    Forgetful.refusals -= 1
    raise StoreUnavailable("the connection broke")


@pytest.mark.parametrize("refusals", [1, 2])
async def test_an_owner_that_cannot_tell_whether_it_has_answered_lets_the_asker_ask_again(refusals: int) -> None:
    async with two_engines(journal=Forgetful) as (one, two):
        job = await held(one, 3)
        Forgetful.refusals = refusals
        paused = await two.client.verbs.pause(job)
        one.workers[0].open()

        assert paused.job.state is State.PAUSED
        assert asks_now(two) == []


def test_every_error_of_a_verb_comes_through_as_it_is() -> None:
    error = NotAllowed("job-1", "pause", "failed", ["retry"])
    back = to_error(refused(error))

    assert (type(back), str(back), vars(back)) == (NotAllowed, str(error), vars(error))
    assert isinstance(to_error(Refused("of_a_newer_release", "why")), StoreTrouble)
    kinds = list(TAGS.values())
    assert all(not issubclass(later, earlier) for n, earlier in enumerate(kinds) for later in kinds[n + 1 :])
    assert all(issubclass(kind, EngineError) for kind in kinds)


@pytest.mark.parametrize("word", ["argument", "tag"])
async def test_what_an_engine_of_another_version_asks_for_ends_nobodys_engine(word: str) -> None:
    async with two_engines() as (one, two):
        job = await held(one, 3)
        if word == "argument":
            with pytest.raises(StoreTrouble, match="engine one failed at it: TypeError"):
                await two.client.verbs._relay.ask("one", "pause", job, {"until": 5})
        else:
            asked = NewEvent("verb_wished", msgspec.msgpack.encode({"type": "verb_wished"}))
            name = f"{ASKS}one/two-99"
            await two.world.journal.append(Append(stream=name, expected=0, epoch=0, at=0.0, events=(asked,)))
            with anyio.fail_after(30):
                while len(await two.world.journal.read(name)) < 3:
                    await anyio.sleep(0.01)
        one.workers[0].open()
        assert (await one.ended(job)).state is State.COMPLETED
