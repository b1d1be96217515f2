"""Steps, loops, rows and disks that fail: one job pays, or none, and never the engine."""

from collections.abc import Mapping
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from cards.loop import Loop, LoopState, StepOutput
from cards.wire import Released
from engine.actor import Saved, new_stream, replay
from engine.events import JobSubmitted
from engine.job import State
from store.blobs import MemoryBlobs
from store.errors import StoreUnavailable
from store.journal import Append, NewEvent
from tests import toy
from tests.failing_journals import QueuedJournal
from tests.sim import World, assert_unharmed, request


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

    def put_named(self, blobs: Mapping[str, bytes]) -> None:
        if self.full:
            self.refused += 1
            raise StoreUnavailable("the disk is full")
        super().put_named(blobs)


async def test_a_job_goes_on_after_an_append_was_refused_while_a_step_ran() -> None:
    world = World()
    journal = QueuedJournal(world.journal)
    async with world.engine(journal=journal) as running:
        worker = running.workers[0]
        worker.hold_at = 4  # a job of few steps may end before anybody looks
        job = await running.client.submit(request(steps=8))
        await running.until(lambda: worker.gate is not None and running.client.statistics().outstanding_units == 2)
        await running.engine.ledger.settled()
        journal.refuse = 1  # the append of the step that is held, with the next one at the worker
        worker.open()
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
        for seed in range(20, 24):  # its steps are known to be short: more than two may wait there
            await running.ended((await running.client.submit(request(seed=seed))).id)
        worker.ran.clear()
        worker.gate = gate = anyio.Event()
        busy = await running.client.submit(request("a count adaptive=1", seed=1))
        await running.until(lambda: bool(worker.ran))
        await running.engine.ledger.settled()
        again = JobSubmitted(
            job="job-refused", request=busy.request, model=busy.model, submitted_at=busy.submitted_at + 1
        )
        await world.journal.append(new_stream([again], Saved(replay([again]), None), again.submitted_at))
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
        running.workers[0].hold_at = 4  # else the job may end before anybody looks
        job = await running.client.submit(request("a count big=70000", steps=8))
        await running.until(lambda: running.workers[0].gate is not None)
        await running.engine.ledger.settled()
    world.blobs = MemoryBlobs()  # every large blob is gone
    async with world.engine() as running:
        job = await running.ended(job.id)

    assert job.failure is not None
    assert job.failure.kind == "corrupt_checkpoint"
    assert "is missing" in job.failure.message
