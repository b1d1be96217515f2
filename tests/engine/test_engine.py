"""A job's life on the real engine, with workers that are tasks."""

from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from cards.errors import InvalidRequest, UnknownModel
from cards.loop import Loop, LoopState, StepOutput
from cards.wire import Released, StepResult, TensorRef, UnitId, is_promised
from engine.actor import submission
from engine.cancel import Outcome
from engine.errors import ArtifactNotFound, Draining, JobNotFound, KeyReused
from engine.events import JobRecovered, JobSubmitted, NumericsChanged, WorkerLost
from engine.job import State
from store.blobs import MemoryBlobs
from store.errors import StoreUnavailable
from store.journal import Append, NewEvent
from tests import toy
from tests.sim import QueuedJournal, Running, SimClock, World, digests, request


async def test_a_job_runs_from_submit_to_its_artifact() -> None:
    async with World().engine() as running:
        job = await running.client.submit(request(steps=3))
        job = await running.ended(job.id)
        kinds = [told.type for told in await running.client.events(job.id)]
        _, result = await running.client.artifact(job.id, "result.txt")

    assert job.state is State.COMPLETED
    assert kinds == [
        "job_submitted",
        "job_admitted",
        "node_started",
        "numerics_changed",
        "step_completed",
        "node_completed",
        "node_started",
        "step_completed",
        "step_completed",
        "step_completed",
        "node_completed",
        "node_started",
        "step_completed",
        "node_completed",
        "job_completed",
    ]
    assert result.startswith(b"[[")


async def test_a_submit_is_checked_against_the_card_and_leaves_nothing_behind() -> None:
    async with World().engine() as running:
        for bad in ({"steps": 0}, {"guidance": float("nan")}, {"seed": -1}, {"priority": 101}, {"prompt": "  "}):
            with pytest.raises(InvalidRequest) as caught:
                await running.client.submit(request(**bad))
            assert caught.value.field == next(iter(bad))
        with pytest.raises(UnknownModel, match="toy"):
            await running.client.submit(toy_request_of("nothing"))

        assert await running.client.jobs() == []


def toy_request_of(model: str):  # type: ignore[no-untyped-def]
    return replace(request(), model=model)


async def test_the_same_key_and_request_are_the_same_job_also_at_once() -> None:
    async with World().engine() as running:
        found: list[str] = []

        async def submit() -> None:
            found.append((await running.client.submit(request(), key="k")).id)

        async with anyio.create_task_group() as tasks:
            for _ in range(16):
                tasks.start_soon(submit)

        assert len(set(found)) == 1
        with pytest.raises(KeyReused):
            await running.client.submit(request(steps=5), key="k")
        assert len(await running.client.jobs()) == 1


async def test_a_seed_that_was_left_out_is_drawn_once() -> None:
    async with World().engine() as running:
        job = await running.client.submit(replace(request(), seed=None))
        told = await running.client.events(job.id, limit=1)

    assert told[0].event.request.seed == job.request.seed  # type: ignore[union-attr]


async def test_words_outside_the_vocabulary_are_an_event_and_no_error() -> None:
    async with World().engine() as running:
        job = await running.client.submit(request("an unknown count"))
        job = await running.ended(job.id)

    assert job.state is State.COMPLETED
    assert [notice.code for notice in job.notices] == ["unknown_words"]


async def test_unknown_names_are_errors() -> None:
    async with World().engine() as running:
        for ask in (running.client.job, running.client.cancel, running.client.events, running.client.checkpoints):
            with pytest.raises(JobNotFound):
                await ask("job-nowhere")
        job = await running.client.submit(request())
        with pytest.raises(ArtifactNotFound, match="none yet"):
            await running.client.artifact(job.id, "video.mp4")


# -- interleaving -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 3])
async def test_jobs_interleaved_equal_the_same_jobs_run_alone(workers: int) -> None:
    requests = [request(f"a count big={70_000 + n}", steps=3 + n % 4, seed=n) for n in range(12)]

    alone = []
    for one in requests:
        async with World().engine() as running:
            job = await running.ended((await running.client.submit(one)).id)
            alone.append((job.artifacts, digests(await running.client.checkpoints(job.id))))
    async with World().engine(workers=workers) as running:
        jobs = [await running.client.submit(one) for one in requests]
        ended = [await running.ended(job.id) for job in jobs]
        together = [(job.artifacts, digests(await running.client.checkpoints(job.id))) for job in ended]
        first = [unit.id.job for unit in running.workers[0].ran]

    assert together == alone
    if workers == 1:
        assert first != sorted(first), "the jobs ran one after the other: nothing was interleaved"


async def test_the_step_that_is_sure_to_follow_is_there_when_one_is_done() -> None:
    async with World().engine() as running:
        worker = running.workers[0]
        worker.gate = anyio.Event()
        job = await running.client.submit(request(steps=4))
        worker.gate.set()
        await running.until(lambda: any(unit.plan.loop == "count" for unit in worker.ran))
        worker.gate = anyio.Event()
        await running.until(lambda: running.client.statistics().outstanding_units == 2)
        ahead = list(running.engine.fleet.seats[worker.name].outstanding.values())[1]
        worker.gate.set()

        assert is_promised(ahead.reads["x"])
        assert (await running.ended(job.id)).state is State.COMPLETED


async def test_a_step_that_depends_on_what_the_last_one_found_waits_for_it() -> None:
    async with World().engine() as running:
        one = await running.ended((await running.client.submit(request("a count"))).id)
        other = await running.ended((await running.client.submit(request("a count adaptive=1"))).id)
        reads = [ref for unit in running.workers[0].ran if unit.id.job == other.id for ref in unit.plan.reads.values()]

        assert other.artifacts == one.artifacts
        assert not any(is_promised(ref) for ref in reads)


async def test_a_higher_priority_goes_first() -> None:
    async with World().engine(workers=0) as running:
        low = [await running.client.submit(request(priority=0, seed=n)) for n in range(4)]
        high = await running.client.submit(request(priority=5))
        await running.until(lambda: len(running.engine.ledger.actors) == 5)
        running.add_worker(credits=1)
        await running.ended(high.id)
        running.engine.fleet.seats.clear()

        assert not any([(await running.client.job(job.id)).terminal for job in low])


# -- cancelling -------------------------------------------------------------------------------------------------


async def assert_unharmed(running: Running) -> None:
    """The next job runs, and everything that was held has been given back."""
    job = await running.ended((await running.client.submit(request(seed=99))).id)
    assert job.state is State.COMPLETED
    await running.until(lambda: all(not worker.executor.resident.held().tensors for worker in running.workers))
    statistics = running.client.statistics()
    assert statistics.outstanding_units == statistics.reserved_bytes == statistics.ready_steps == 0
    assert statistics.free_credits == 2 * statistics.workers


@pytest.mark.parametrize("units", range(8))
async def test_a_job_is_cancelled_at_any_step_within_one_step(units: int) -> None:
    async with World().engine() as running:
        job = await running.client.submit(request("a count big=70000", steps=4))
        await running.until(lambda: len(running.workers[0].ran) >= min(units, 6))
        outcome = await running.client.cancel(job.id)
        ran = len(running.workers[0].ran)
        job = await running.ended(job.id)

        if job.state is State.CANCELLED:
            assert outcome in (Outcome.CANCELLED, Outcome.CANCELLING)
            assert len(running.workers[0].ran) <= ran + 1
        else:
            assert outcome is Outcome.ALREADY_TERMINAL
        assert await running.client.cancel(job.id) is Outcome.ALREADY_TERMINAL
        await assert_unharmed(running)


async def test_a_job_that_waits_for_a_worker_is_cancelled_at_once() -> None:
    async with World().engine(workers=0) as running:
        job = await running.client.submit(request())

        assert await running.client.cancel(job.id) is Outcome.CANCELLED
        assert (await running.client.job(job.id)).state is State.CANCELLED


async def test_a_job_that_nobody_holds_in_memory_is_cancelled_in_the_log() -> None:
    world = World()
    async with world.engine(workers=0) as running:
        job = await running.client.submit(request())

    async with world.engine(workers=0, max_active=0) as running:
        assert await running.client.cancel(job.id) is Outcome.CANCELLED
        assert [told.type for told in await running.client.events(job.id)][-2:] == ["cancel_requested", "job_cancelled"]


async def test_a_cancel_that_races_completion_gives_one_of_the_two() -> None:
    seen = set()
    for spins in range(60):
        async with World().engine() as running:
            job = await running.client.submit(request(steps=1))
            while len(running.workers[0].ran) < 3:
                await anyio.lowlevel.checkpoint()
            for _ in range(spins % 20):
                await anyio.lowlevel.checkpoint()
            outcome = await running.client.cancel(job.id)
            job = await running.ended(job.id)
            kinds = [told.type for told in await running.client.events(job.id)]

        assert kinds.count("job_completed") + kinds.count("job_cancelled") == 1
        assert (job.state is State.COMPLETED) == (outcome is Outcome.ALREADY_TERMINAL)
        seen.add(job.state)
    assert seen == {State.CANCELLED, State.COMPLETED}, "the race was not run from both sides"


async def test_nothing_leaks_over_two_hundred_cancels() -> None:
    world = World()

    async def one(running: Running, n: int) -> None:
        job = await running.client.submit(request("a count big=70000", steps=5, seed=n))
        for _ in range(n % 40):
            await anyio.lowlevel.checkpoint()
        await running.client.cancel(job.id)
        await running.ended(job.id)

    async with world.engine(workers=2, journal=QueuedJournal(world.journal)) as running:
        for first in range(0, 200, 8):
            async with anyio.create_task_group() as tasks:
                for n in range(first, first + 8):
                    tasks.start_soon(one, running, n)
        await assert_unharmed(running)
        assert len(running.engine.ledger.actors) == 0


async def test_a_job_may_be_cancelled_by_several_at_once() -> None:
    world = World()
    for spins in range(30):
        outcomes: list[Outcome] = []

        async def cancel(running: Running, job: str, outcomes: list[Outcome] = outcomes) -> None:
            outcomes.append(await running.client.cancel(job))

        async with world.engine(journal=QueuedJournal(world.journal)) as running:
            job = await running.client.submit(request(steps=1000, seed=spins))
            await running.until(lambda running=running: len(running.workers[0].ran) > 4)
            for _ in range(spins):
                await anyio.lowlevel.checkpoint()
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(cancel, running, job.id)
            job = await running.ended(job.id)

        assert job.state is State.CANCELLED
        assert outcomes.count(Outcome.CANCELLED) <= 1
        assert Outcome.CANCELLED in outcomes or Outcome.CANCELLING in outcomes


async def test_a_caller_of_cancel_that_goes_away_changes_nothing() -> None:
    world = World()
    journal = QueuedJournal(world.journal)
    async with world.engine(journal=journal) as running:
        job = await running.client.submit(request(steps=20))
        await running.until(lambda: len(running.workers[0].ran) > 2)
        journal.held = True
        with anyio.move_on_after(0.02):
            await running.client.cancel(job.id)
        journal.release()

        assert (await running.ended(job.id)).state is State.CANCELLED
        await assert_unharmed(running)


async def test_a_cancel_that_was_under_way_when_its_engine_died_can_be_finished_without_its_weights() -> None:
    world = World()
    async with world.engine() as running:
        running.workers[0].gate = anyio.Event()
        job = await running.client.submit(request())
        await running.until(lambda: bool(running.workers[0].ran))
        assert await running.client.cancel(job.id) is Outcome.CANCELLING
    world.families = (toy.ToyFamily(weights="other"),)
    async with world.engine() as running:
        assert await running.client.cancel(job.id) is Outcome.CANCELLED


async def test_a_cancel_of_one_job_leaves_its_neighbours_alone() -> None:
    async with World().engine() as running:
        first, second = [await running.client.submit(request(seed=n, steps=20)) for n in (1, 2)]
        await running.until(lambda: len(running.workers[0].ran) > 6)
        await running.client.cancel(first.id)
        job = await running.ended(second.id)

    assert job.state is State.COMPLETED


# -- steps that fail ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wish", "kind"), [("fail=2", "error"), ("oom=2", "oom")])
async def test_a_step_that_fails_fails_its_job_and_no_other(wish: str, kind: str) -> None:
    async with World().engine() as running:
        job = await running.ended((await running.client.submit(request(f"a count {wish}"))).id)

        assert job.state is State.FAILED
        assert job.failure is not None
        assert (job.failure.kind, job.failure.node, job.failure.step) == (kind, "count", 2)
        await assert_unharmed(running)


async def test_a_step_waits_while_the_blob_store_takes_nothing() -> None:
    world = World()
    world.blobs = FullBlobs()
    async with world.engine() as running:
        job = await running.client.submit(request("a count big=70000"))
        await running.until(lambda: world.blobs.refused > 2)
        assert any("disk is full" in reason for reason in running.client.readiness().reasons)
        assert (await running.client.job(job.id)).state is State.RUNNING

        world.blobs.full = False
        assert (await running.ended(job.id)).state is State.COMPLETED
        assert running.client.readiness().ready


class FullBlobs(MemoryBlobs):
    full = True
    refused = 0

    def put(self, data: bytes) -> str:
        if self.full:
            self.refused += 1
            raise StoreUnavailable("the disk is full")
        return super().put(data)


async def test_a_job_goes_on_after_an_append_was_refused_while_a_step_ran() -> None:
    world = World()
    journal = QueuedJournal(world.journal)
    async with world.engine(journal=journal) as running:
        worker = running.workers[0]
        job = await running.client.submit(request(steps=8))
        await running.until(lambda: len(worker.ran) > 3)
        worker.gate = anyio.Event()  # the step that runs outlasts the refusal and the reconciling after it
        await running.until(lambda: running.client.statistics().outstanding_units == 2)
        journal.refuse = 1
        held, worker.gate = worker.gate, None
        held.set()
        await running.until(lambda: journal.refuse == 0)
        job = await running.ended(job.id)
        steps = [
            (t.event.node, t.event.step) for t in await running.client.events(job.id) if t.type == "step_completed"
        ]

        assert job.state is State.COMPLETED
        assert len(steps) == len(set(steps)) == 10
        await assert_unharmed(running)


async def test_a_job_whose_claim_was_refused_is_claimed_again_while_its_worker_is_busy() -> None:
    """The first claim's unit waits at the worker, is released there, and must not be taken for the second claim's."""
    world = World()
    journal = QueuedJournal(world.journal)
    async with world.engine(workers=0, journal=journal) as running:
        running.add_worker(credits=16)
        worker = running.workers[0]
        await running.until(lambda: bool(running.engine.fleet.seats))
        running.engine.fleet.seats[worker.name].step_s["toy", "prepare"] = 0.001  # so that more than two may wait there
        worker.gate = gate = anyio.Event()
        busy = await running.client.submit(request("a count adaptive=1", seed=1))
        await running.until(lambda: bool(worker.ran))
        await running.engine.ledger.settled()
        again = JobSubmitted(
            job="job-refused", request=busy.request, model=busy.model, submitted_at=busy.submitted_at + 1
        )
        await world.journal.append(submission(again, [], again.submitted_at, None))
        journal.refuse = 2  # the claim, and what is written with its first unit
        await running.until(lambda: journal.refuse == 0)
        await running.until(lambda: again.job in running.engine.ledger.actors)
        await running.until(lambda: bool(running.engine.ledger.actors[again.job].out))
        worker.gate = None
        gate.set()

        assert (await running.ended(again.job, within_s=5)).state is State.COMPLETED
        assert (await running.ended(busy.id, within_s=5)).state is State.COMPLETED


async def test_a_late_word_of_an_old_release_takes_nothing_from_the_new_epoch() -> None:
    world = World()
    async with world.engine() as running:
        worker = running.workers[0]
        job = await running.client.submit(request(steps=8))
        await running.until(lambda: len(worker.ran) > 2)
        running.link.tell(worker.name, Released(job.id, 0, ()), ())
        assert (await running.ended(job.id)).state is State.COMPLETED


@pytest.mark.parametrize("where", ["init", "next", "advance"])
async def test_a_loop_that_raises_fails_its_own_job(where: str) -> None:
    class Broken(toy.ToyFamily):
        def __init__(self) -> None:
            super().__init__()
            self.loops = {**self.loops, "toy.count/1": Raising(self.loops["toy.count/1"], where)}

    async with World(families=(Broken(),)).engine() as running:
        job = await running.ended((await running.client.submit(request("a count raise=1"))).id)
        assert job.failure is not None
        assert (job.failure.kind, "asked to raise" in job.failure.message) == ("error", True)


class Raising:
    """A loop with a bug in one of its functions, for prompts that ask for it."""

    def __init__(self, inner: Loop, where: str) -> None:
        self._inner = inner
        self._where = where
        self.semantics = inner.semantics

    def __getattr__(self, name: str) -> Any:
        if name != self._where:
            return getattr(self._inner, name)

        def raising(*arguments: object) -> None:
            raise RuntimeError("asked to raise")

        return raising


async def test_a_first_loop_that_raises_fails_its_job_and_not_the_engine() -> None:
    class Broken(toy.ToyFamily):
        def __init__(self) -> None:
            super().__init__()
            self.loops = {**self.loops, "toy.prepare/1": Raising(self.loops["toy.prepare/1"], "init")}

    async with World(families=(Broken(),)).engine() as running:
        job = await running.ended((await running.client.submit(request())).id)

        assert job.state is State.FAILED
        assert running.client.readiness().ready


async def test_a_loop_whose_next_step_is_not_the_promised_one_fails_its_job() -> None:
    """A policy that remembers a scalar must not promise: what ran ahead would not know it."""

    class Remembering(toy.ToyLoop):
        def advance(self, state: LoopState, output: StepOutput) -> LoopState:
            state = super().advance(state, output)
            return replace(state, scalars={**state.scalars, **output.scalars})

    class Broken(toy.ToyFamily):
        def __init__(self) -> None:
            super().__init__()
            self.loops = {**self.loops, "toy.count/1": Remembering("toy.count/1", ("x",))}

    async with World(families=(Broken(),)).engine() as running:
        job = await running.ended((await running.client.submit(request(steps=6))).id)

        assert job.failure is not None
        assert "promised another step" in job.failure.message


@pytest.mark.parametrize("what", ["event", "checkpoint"])
async def test_a_log_that_cannot_be_read_stays_where_it_is_and_the_others_go_on(what: str) -> None:
    world = World()
    async with world.engine(workers=0) as running:
        broken, sound = [await running.client.submit(request(seed=n)) for n in (1, 2)]
        await running.until(lambda: len(running.engine.ledger.actors) == 2)
        await running.engine.ledger.settled()
    loaded = await world.journal.load(f"job/{broken.id}")
    assert loaded is not None
    await world.journal.append(
        Append(
            stream=f"job/{broken.id}",
            expected=loaded.version,
            epoch=loaded.epoch,
            at=0.0,
            events=(NewEvent("worker_lost", b"\xc1" if what == "event" else b"\x80"),),
            checkpoint=None if what == "event" else b"\xc1",
        )
    )
    async with world.engine() as running:
        assert (await running.ended(sound.id)).state is State.COMPLETED
        assert "cannot be read" in running.engine.reconciler.unrunnable[broken.id]


async def test_a_checkpoint_whose_bytes_are_damaged_fails_its_job_by_name() -> None:
    world = World()
    async with world.engine() as running:
        job = await running.client.submit(request("a count big=70000", steps=8))
        await running.until(lambda: len(running.workers[0].ran) >= 4)
    world.blobs = MemoryBlobs()  # every large blob is gone
    async with world.engine() as running:
        job = await running.ended(job.id)

    assert job.failure is not None
    assert job.failure.kind == "corrupt_checkpoint"
    assert "is missing" in job.failure.message


# -- workers that go ----------------------------------------------------------------------------------------------


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


# -- the engine itself --------------------------------------------------------------------------------------------


async def test_nobody_is_told_of_what_is_not_durable() -> None:
    world = World()
    slow = QueuedJournal(world.journal)
    async with world.engine(journal=slow, window=3) as running:
        job = await running.client.submit(request(steps=20))
        await running.until(lambda: len(running.workers[0].ran) >= 2)
        slow.held = True
        await anyio.sleep(0.05)
        ran = len(running.workers[0].ran)
        told = (await running.client.job(job.id)).place
        await anyio.sleep(0.05)

        assert len(running.workers[0].ran) <= ran + 1, "it ran further ahead of the disk than its window"
        assert (await running.client.job(job.id)).place == told
        slow.release()
        assert (await running.ended(job.id)).state is State.COMPLETED


async def test_a_drained_engine_hands_its_jobs_back_between_two_steps() -> None:
    world = World()
    async with world.engine() as running:
        job = await running.client.submit(request(steps=50))
        await running.until(lambda: len(running.workers[0].ran) >= 5)
        await running.engine.drain(grace_s=5)
        with pytest.raises(Draining):
            await running.client.submit(request())
        assert not running.client.readiness().ready
        kinds = [told.type for told in await running.client.events(job.id)]
        assert (await running.client.job(job.id)).state is State.QUEUED

    assert kinds[-1] == "job_released"
    async with world.engine() as running:
        assert (await running.ended(job.id)).state is State.COMPLETED


async def test_an_idle_hour_does_not_make_a_new_job_late() -> None:
    clock = SimClock()
    async with World(clock=clock).engine() as running:
        await running.until(lambda: running.client.readiness().ready)
        running.engine.fleet.silent_s = 1e9
        clock.advance(3600)
        running.workers[0].frozen = True
        await running.client.submit(request())
        await running.until(lambda: len(running.engine.ledger.actors) == 1)

        assert running.client.readiness().ready


async def test_readiness_tells_the_truth() -> None:
    clock = SimClock()
    async with World(clock=clock).engine(workers=0) as running:
        assert running.client.readiness().reasons == ("no worker has joined",)
        running.add_worker()
        await running.until(lambda: running.client.readiness().ready)

        frozen = running.workers[0]
        frozen.frozen = True
        await running.client.submit(request())
        await running.until(lambda: len(running.engine.ledger.actors) == 1)
        running.engine.fleet.silent_s = 1e9
        clock.advance(121)
        assert any("nothing has moved" in reason for reason in running.client.readiness().reasons)


async def test_a_watcher_sees_every_event_once_and_the_end() -> None:
    async with World().engine() as running:
        job = await running.client.submit(request(steps=30))
        seen = [told.position async for page in running.client.watch(job.id) for told in page]
        again = [told.position for told in await running.client.events(job.id)]

        assert seen == again == sorted(set(seen))
        assert [page async for page in running.client.watch(job.id, after=seen[-1])] == []
