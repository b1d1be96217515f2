"""Workers that die, freeze, lie or change: jobs go on elsewhere, and late words decide nothing."""

from collections.abc import Sequence

import anyio
import pytest
from msgspec.structs import replace

from cards.wire import EngineMessage, Heartbeat, Introduce, Released, StepResult, TensorRef, UnitId, WorkUnit
from engine.cancel import Outcome
from engine.events import JobRecovered, NumericsChanged, WorkerLost
from engine.job import State
from engine.link import Arrived
from tests import toy
from tests.failing_journals import QueuedJournal
from tests.sim import SimClock, World, assert_unharmed, digests, request
from tests.sim_worker import SimWorker


async def test_a_worker_that_freezes_past_its_lease_changes_nothing_when_it_thaws() -> None:
    unbroken = await one_alone()
    clock = SimClock()
    async with World(clock=clock).engine(workers=1, reconcile_s=0.01) as running:
        job = await running.client.submit(request(steps=6))
        await running.until(lambda: len(running.workers[0].ran) >= 3)
        frozen = running.workers[0]
        frozen.frozen = True
        running.add_worker()
        await running.until(lambda: len(running.engine.fleet.seats) == 2)
        for _ in range(30):  # the second worker stays in touch, the first does not
            clock.advance(0.4)
            await anyio.sleep(0.001)
            for worker in running.workers[1:]:
                running.engine.fleet.heard(worker.name, clock.monotonic())
        ended = await running.ended(job.id)
        before = [told.position for told in await running.client.events(job.id)]
        frozen.frozen = False
        await running.until(lambda: len(running.engine.fleet.seats) == 2)

        assert ended.state is State.COMPLETED
        assert (ended.artifacts, digests(await running.client.checkpoints(job.id))) == unbroken
        assert [told.position for told in await running.client.events(job.id)] == before
        await assert_unharmed(running)


async def test_a_worker_that_drops_all_for_an_engine_that_is_gone_is_given_all_again() -> None:
    """An introduction that was long on its way: the engine that sent it has another by now."""
    unbroken = await one_alone()
    async with World().engine() as running:
        job = await running.client.submit(request(steps=6))
        await running.until(lambda: len(running.workers[0].ran) >= 3)

        running.workers[0].deliver(Introduce(number=7), ())

        ended = await running.ended(job.id)
        assert ended.state is State.COMPLETED
        assert (ended.artifacts, digests(await running.client.checkpoints(job.id))) == unbroken
        assert ended.deaths == 0
        await assert_unharmed(running)


async def one_alone() -> object:
    async with World().engine() as running:
        job = await running.ended((await running.client.submit(request(steps=6))).id)
        return job.artifacts, digests(await running.client.checkpoints(job.id))


@pytest.mark.parametrize("field", ["epoch", "version", "attempt"])
async def test_a_result_under_another_epoch_version_or_attempt_decides_nothing(field: str) -> None:
    async with World().engine() as running:
        worker = running.workers[0]
        worker.gate = anyio.Event()
        job = await running.client.submit(request())
        await running.until(lambda: bool(worker.ran))
        true = worker.ran[0].id
        forged = StepResult(
            replace(true, **{field: getattr(true, field) + 1}), {"start": TensorRef("x", "", (), (), 0)}
        )
        running.link.tell(worker.name, forged, ())
        running.link.tell("a stranger", StepResult(true, {}), ())
        running.link.tell(worker.name, StepResult(UnitId("job-nowhere", 1, 1, 1)), ())
        running.link.tell(worker.name, Released("job-nowhere", 1, ()), ())
        await anyio.sleep(0.01)
        assert "step_completed" not in [told.type for told in await running.client.events(job.id)]

        worker.gate.set()
        assert (await running.ended(job.id)).state is State.COMPLETED


async def test_a_worker_forgets_what_it_made_of_a_job_that_is_elsewhere() -> None:
    """A unit of an engine that is gone was long on its way."""
    async with World().engine() as running:
        worker = running.workers[0]
        await running.ended((await running.client.submit(request())).id)
        late = replace(worker.ran[0], id=replace(worker.ran[0].id, job="job-elsewhere"))

        worker.deliver(late, ())

        await running.until(lambda: worker.ran[-1] == late)
        await running.until(lambda: not worker.executor.resident.held().tensors)
        await assert_unharmed(running)


async def test_bytes_that_do_not_hash_to_their_name_cost_the_worker_its_seat() -> None:
    async with World().engine(workers=1) as running:
        worker = running.workers[0]
        worker.gate = anyio.Event()
        job = await running.client.submit(request())
        await running.until(lambda: bool(worker.ran))
        liar = StepResult(worker.ran[0].id, {}, inline=("0" * 64,))
        running.link.tell(worker.name, liar, (b"something else",))
        await running.until(lambda: not running.engine.fleet.seats)
        worker.gate.set()
        running.add_worker()
        job = await running.ended(job.id)
        lost = [told.event for told in await running.client.events(job.id) if isinstance(told.event, WorkerLost)]

    assert job.state is State.COMPLETED
    assert [event.reason for event in lost] == ["sent bytes that do not hash to their name"]


async def test_a_job_that_kills_its_workers_is_failed_after_three_also_across_restarts() -> None:
    world = World()
    async with world.engine(workers=0) as running:
        job_id = (await running.client.submit(request("a count die=2"))).id
    for _ in range(3):
        async with world.engine() as running:
            worker = running.workers[0]
            await running.until(lambda worker=worker: worker.dead)
            await running.until(running.link.inbox.empty)
            await running.engine.lose(worker.name, "was killed by signal 9")
            await running.engine.ledger.settled()
    async with world.engine() as running:
        job = await running.client.job(job_id)
        await assert_unharmed(running)

    assert job.state is State.FAILED
    assert job.failure is not None
    assert job.failure.kind == "poisoned"


async def test_only_the_job_that_ran_is_blamed_for_a_death() -> None:
    async with World().engine() as running:
        poison = await running.client.submit(request("a count die=0", seed=1))
        innocent = await running.client.submit(request(seed=2, steps=8))
        for _ in range(3):
            worker = running.workers[-1]
            await running.until(lambda worker=worker: worker.dead)
            await running.engine.lose(worker.name, "was killed by signal 9")
            running.add_worker()
        job = await running.ended(innocent.id)
        blamed = [
            (told.event.blamed)
            for told in await running.client.events(innocent.id)
            if isinstance(told.event, WorkerLost)
        ]

        assert job.state is State.COMPLETED
        assert True not in blamed
        assert (await running.client.job(poison.id)).state is State.FAILED


async def test_a_hello_that_comes_twice_changes_nothing() -> None:
    async with World().engine() as running:
        worker = running.workers[0]
        worker.gate = anyio.Event()
        job = await running.client.submit(request())
        await running.until(lambda: bool(worker.ran))
        running.link.tell(worker.name, worker.hello(), ())
        await running.until(running.link.inbox.empty)
        worker.gate.set()

        assert (await running.ended(job.id)).state is State.COMPLETED
        assert "worker_lost" not in [told.type for told in await running.client.events(job.id)]


async def test_a_stranger_joins_with_its_answer_to_the_last_introduction() -> None:
    """It drops what it holds for each, so what it were sent after an older answer would be lost."""
    clock = SimClock()
    async with World(clock=clock).engine(workers=0) as running:
        stranger = running.world.worker()
        running.link.workers[stranger.name] = stranger
        asked = []
        stranger.deliver = lambda message, frames: asked.append(message)  # type: ignore[method-assign]
        for _ in range(2):
            await running.engine.handle(Arrived(stranger.name, Heartbeat(0, 0, 0)))
            clock.advance(10)
        first, last = [message.number for message in asked]

        await running.engine.handle(Arrived(stranger.name, replace(stranger.hello(), answers=first)))
        assert not running.engine.fleet.seats
        await running.engine.handle(Arrived(stranger.name, replace(stranger.hello(), answers=last)))
        assert running.engine.fleet.seats


class Deaf(SimWorker):
    """Units of the third step and later never come to it."""

    def deliver(self, message: EngineMessage, frames: Sequence[bytes]) -> None:
        if not (isinstance(message, WorkUnit) and message.plan.step >= 2):
            super().deliver(message, frames)


async def test_a_worker_is_lost_while_the_failure_of_its_job_is_on_its_way_to_disk() -> None:
    """The unit that was sent ahead is still with the worker then."""
    world = World()
    slow = QueuedJournal(world.journal)
    async with world.engine(journal=slow) as running:
        worker = running.workers[0]
        worker.__class__ = Deaf
        job = await running.client.submit(request("a count fail=1"))
        await running.until(lambda: bool(worker.ran))
        slow.held = True
        await running.until(lambda: running.engine.ledger.actors[job.id].job.terminal)
        await running.engine.lose(worker.name, "was killed by signal 9")
        slow.release()

        assert (await running.ended(job.id)).state is State.FAILED


async def test_a_job_goes_on_at_its_checkpoint_after_its_engine_is_gone() -> None:
    world = World()
    async with world.engine() as running:
        job = await running.client.submit(request("a count big=70000", steps=8))
        await running.until(lambda: len(running.workers[0].ran) >= 4)
    async with world.engine() as running:
        before = (await running.client.job(job.id)).place
        job = await running.ended(job.id)
        recovered = [told.event for told in await running.client.events(job.id) if isinstance(told.event, JobRecovered)]
        ran = [(unit.plan.loop, unit.plan.step) for unit in running.workers[0].ran]

    assert job.state is State.COMPLETED
    assert job.exact
    assert len(recovered) == 1
    assert ran[0] == ("count", recovered[0].step)
    assert before.step <= recovered[0].step


async def test_other_numerics_are_declared_and_never_silent() -> None:
    world = World()
    async with world.engine() as running:
        job = await running.client.submit(request(steps=8))
        await running.until(lambda: len(running.workers[0].ran) >= 4)
    async with world.engine(workers=0) as running:
        running.add_worker(fingerprint="another machine")
        job = await running.ended(job.id)
        changes = [
            told.event for told in await running.client.events(job.id) if isinstance(told.event, NumericsChanged)
        ]

    assert job.state is State.COMPLETED
    assert not job.exact
    assert [event.fingerprint for event in changes] == ["sim", "another machine"]


async def test_a_job_of_other_weights_stays_in_the_log_and_can_be_cancelled() -> None:
    world = World()
    async with world.engine(workers=0) as running:
        job = await running.client.submit(request())
    world.families = (toy.ToyFamily(weights="other"),)
    async with world.engine() as running:
        await running.until(lambda: job.id in running.engine.reconciler.unrunnable)

        assert "weights" in running.engine.reconciler.unrunnable[job.id]
        assert not (await running.client.job(job.id)).terminal
        assert await running.client.cancel(job.id) is Outcome.CANCELLED
