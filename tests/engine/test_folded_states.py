"""A loop whose state is a fold: little is stored, and whoever needs the rest makes it again, to the bit."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import UNSET, UnsetType

from cards.family import Made
from cards.request import RequestChanges
from cards.wire import StepResult, WorkUnit
from engine import bundle
from engine.actor import Saved
from engine.check import check
from engine.collect import Retention, collect
from engine.contents import Contents
from engine.errors import TensorsGone
from engine.events import JobEvent, JobRewound, StepCompleted
from engine.job import Job, State
from engine.operate import Outcome
from engine.replay import Verdict, verify
from store.blobs import MemoryBlobs
from store.errors import MissingBlob
from store.memory import MemoryJournal
from tests import folded
from tests.engine.test_crash import crashed
from tests.folded import Folded, count_fold
from tests.sim import CrashingJournal, Running, SimClock, World, digests, request
from workers.execute import Executor, load_models

STEPS = 7
ALL = STEPS + 2
EVERY = 3
SMALL = "a count"
WIDE = 3000
LARGE = f"a count wide={WIDE}"
PROMPTS = pytest.mark.parametrize("prompt", [SMALL, LARGE, "a count adaptive=1"])


def world(snapshot_every: int | UnsetType = EVERY, **options: Any) -> World:
    return World(families=(Folded(snapshot_every, **options),))


async def submitted(running: Running, prompt: str = SMALL, **fields: Any) -> Job:
    return await running.client.submit(request(prompt, steps=STEPS, **fields))


async def finished(running: Running, prompt: str = SMALL, **fields: Any) -> Job:
    job = await running.ended((await submitted(running, prompt, **fields)).id)
    assert job.state is State.COMPLETED, job.failure
    return job


async def steps(running: Running, job: str) -> list[Any]:
    return digests(await running.client.checkpoints(job))


async def log(running: Running, job: str) -> list[JobEvent]:
    return [told.event for told in await running.client.events(job)]


async def unfolded(prompt: str = SMALL) -> list[Any]:
    """The same steps of a card whose states are all stored."""
    if prompt not in _unfolded:
        async with world(UNSET).engine() as running:
            _unfolded[prompt] = await steps(running, (await finished(running, prompt)).id)
    return _unfolded[prompt]


_unfolded: dict[str, list[Any]] = {}


async def held(running: Running, units: int, prompt: str = SMALL) -> str:
    """A job whose first worker holds on to the answer of its `units`-th step; all before are on disk."""
    running.workers[0].hold_at = units
    job = await submitted(running, prompt)
    await running.until(lambda: running.workers[0].gate is not None and running.engine.steps >= units - 1)
    await running.engine.ledger.settled()
    return job.id


async def stored(world: World, refs: Mapping[str, Any]) -> set[str]:
    contents, there = Contents(world.journal, world.blobs), set()
    for name, ref in refs.items():
        with suppress(MissingBlob):
            await contents.get(ref.digest)
            there.add(name)
    return there


# -- what is stored -------------------------------------------------------------------------------------------------


@PROMPTS
@pytest.mark.parametrize("every", [1, 2, 3, 100])
async def test_a_step_between_two_snapshots_stores_what_it_made_and_not_what_follows_from_it(
    every: int, prompt: str
) -> None:
    there = world(every)
    async with there.engine() as running:
        job = await finished(running, prompt)
        counted = [step for step in await running.client.checkpoints(job.id) if step.loop == "count"]
        kept = [await stored(there, step.tensors) for step in counted]
        derived = [e.derived for e in await log(running, job.id) if isinstance(e, StepCompleted) and e.node == "count"]

    snapshots = [n for n in range(1, STEPS + 1) if n % every == 0 or n == STEPS]
    for n, (names, left_out) in enumerate(zip(kept, derived, strict=True), start=1):
        assert left_out == (() if n in snapshots else folded.DERIVED)
        assert names == {"m", *(name for name in folded.DERIVED if holders(name, n) & {*snapshots})}


def holders(name: str, n: int) -> set[int]:
    """The steps that leave the tensor which step `n` leaves by this name: a history is handed through."""
    made_at = {"newer": n, "older": max(n - 1, 1)}.get(name)
    return {n} if made_at is None else {made_at, made_at + 1}


async def test_the_bytes_of_a_job_shrink_to_its_outputs_and_snapshots() -> None:
    async def nbytes(every: int | UnsetType) -> int:
        there = world(every)
        async with there.engine() as running:
            made = await running.client.checkpoints((await finished(running, LARGE)).id)
        refs = {ref.digest: ref.nbytes for step in made for ref in step.tensors.values()}
        return sum(nbytes for digest, nbytes in refs.items() if digest in there.blobs._data)

    latent, output = 4 * 4 * WIDE * 4, 4 * 4 * WIDE * 2
    outputs, snapshot = STEPS * output, 3 * latent

    assert await nbytes(UNSET) == outputs + STEPS * 2 * latent
    assert (
        await nbytes(3) == outputs + 3 * snapshot - latent
    )  # the older of the last one is the newer of the one before
    assert await nbytes(100) == outputs + snapshot


@PROMPTS
async def test_what_is_stored_changes_no_bit(prompt: str) -> None:
    async with world().engine() as running:
        assert await steps(running, (await finished(running, prompt)).id) == await unfolded(prompt)


async def test_a_checkpoint_carries_fewer_refolds_than_steps_lie_between_snapshots() -> None:
    there = world(4)
    seen: list[int] = []

    class Watching(MemoryJournal):
        def append(self, append: Any) -> Any:
            seen.append(len(msgspec.msgpack.decode(append.checkpoint, type=Saved).refolds))
            return super().append(append)

    async with there.engine(journal=Watching()) as running:
        await running.ended((await running.client.submit(request(steps=22))).id)

    counted = [*[1, 2, 3, 0] * 5, 1, 0]
    assert [n for n in seen if n] == [n for n in counted if n]
    assert seen[-1] == 0


async def test_a_loop_that_folds_nothing_carries_nothing() -> None:
    async with world(UNSET).engine() as running:
        await finished(running)
        assert all(unit.refolds == () and unit.plan.snapshot for unit in running.workers[0].ran)


# -- resuming -------------------------------------------------------------------------------------------------------


def owed(units: int, every: int) -> int:
    """How many refolds the unit carries that a fresh worker gets first, if it is the job's `units`-th."""
    counted = units - 2
    return counted % every if 0 < counted < STEPS else 0


@pytest.mark.parametrize(
    ("every", "prompt"), [(3, SMALL), (3, LARGE), (3, "a count adaptive=1"), (2, LARGE), (100, SMALL)]
)
@pytest.mark.parametrize("units", range(1, ALL + 1))
async def test_a_job_whose_engine_and_worker_die_at_any_step_makes_the_same_bytes(
    units: int, every: int, prompt: str
) -> None:
    there = world(every)
    async with there.engine() as running:
        job = await held(running, units, prompt)
    async with there.engine() as running:
        ended = await running.ended(job)
        [first, *others] = running.workers[0].ran

        assert ended.state is State.COMPLETED, ended.failure
        assert await steps(running, job) == await unfolded(prompt)
        assert len(first.refolds) == owed(units, every)
        assert all(unit.refolds == () for unit in others)
        assert (await check(there.journal)).problems == ()


@PROMPTS
@pytest.mark.parametrize("units", range(1, ALL + 1))
async def test_a_job_whose_worker_dies_at_any_step_goes_on_with_another(units: int, prompt: str) -> None:
    async with world().engine() as running:
        job = await held(running, units, prompt)
        running.add_worker()
        first, second = running.workers
        first.dead = True
        await running.engine.lose(first.name, "was killed by signal 9")
        ended = await running.ended(job)

        assert ended.state is State.COMPLETED, ended.failure
        assert await steps(running, job) == await unfolded(prompt)
        assert [len(unit.refolds) for unit in second.ran] == [owed(units, EVERY), *[0] * (ALL - units)]


async def test_a_job_that_changes_its_worker_at_every_step_makes_the_same_bytes() -> None:
    async with world().engine() as running:
        await running.until(lambda: bool(running.engine.fleet.seats))
        running.add_worker(pool="other")
        await running.until(lambda: len(running.engine.fleet.seats) == 2)
        running.workers[0].hold_at = 1
        job = await submitted(running, f"{LARGE} adaptive=1")  # whatever is sent ahead stays with its worker
        for units in range(1, ALL):
            here, there = running.workers if units % 2 else reversed(running.workers)
            await running.until(lambda here=here: here.gate is not None)
            moved = await running.client.verbs.migrate(job.id, pool=there.pool)
            assert moved.outcome is Outcome.DONE
            there.hold_at = len(there.ran) + 1
            here.open()
        there.open()
        await running.ended(job.id)

        assert await steps(running, job.id) == await unfolded(f"{LARGE} adaptive=1")
        ran = [len(unit.refolds) for worker in running.workers for unit in worker.ran]
        assert sorted(ran) == sorted(owed(units, EVERY) for units in range(1, ALL + 1))


@pytest.mark.parametrize("durable", [False, True])
async def test_a_folding_job_survives_a_crash_at_any_append(durable: bool) -> None:
    async def life(running: Running) -> None:
        job = await running.client.submit(request(steps=4), key="k")
        await running.ended(job.id)

    async def ending(running: Running) -> Any:
        [row] = await running.client.jobs()
        job = await running.client.job(row.id)
        return job.state, job.outputs, job.artifacts, await steps(running, job.id)

    async with world().engine() as running:
        await life(running)
        unbroken = await ending(running)
    assert unbroken[0] is State.COMPLETED

    nth, reached = 0, True
    while reached:
        nth += 1
        there = world()
        reached = await crashed(there, CrashingJournal(there.journal, nth, durable=durable), life)
        async with there.engine() as running:
            await life(running)
            assert await ending(running) == unbroken, f"append {nth}"
    assert nth > 6


@pytest.mark.parametrize("units", range(2, 7))
async def test_outputs_that_no_snapshot_holds_are_made_again_for_the_node_that_reads_them(units: int) -> None:
    """The loop ends sooner than it said, between two snapshots."""
    there = world()
    async with there.engine() as running:
        job = await held(running, units, "a count early=5")
    async with there.engine() as running:
        ended = await running.ended(job)

        assert ended.state is State.COMPLETED, ended.failure
        assert await steps(running, job) == await unfolded("a count early=5")
    async with there.engine() as running:
        again = await running.ended((await running.client.fork(job, 6)).id)
        assert again.artifacts == ended.artifacts
        assert len(running.workers[0].ran[0].refolds) == 2


@pytest.mark.parametrize("units", range(1, ALL))
async def test_a_job_that_is_moved_to_another_store_at_any_step_makes_the_same_bytes(
    tmp_path: Path, units: int
) -> None:
    here, there = world(), world()
    file = tmp_path / "job.tar"
    async with here.engine() as running:
        job = await held(running, units, LARGE)
        await running.client.verbs.pause(job)
        running.workers[0].open()
        await running.until(lambda: job not in running.engine.ledger.actors)
        done = len(await steps(running, job))
        contents = Contents(here.journal, here.blobs)
        manifest = await bundle.export(here.journal, contents, job, file, origin="here", resumes=True)
    async with there.engine() as running:
        await running.client.take_in(file)
        ended = await running.ended(job)

        assert manifest.absent == 0, "what is derived is not missed"
        assert ended.state is State.COMPLETED, ended.failure
        assert await steps(running, job) == await unfolded(LARGE)
        assert len(running.workers[0].ran[0].refolds) == owed(done + 1, EVERY)


@pytest.mark.parametrize("units", range(1, ALL + 1))
async def test_a_collection_leaves_what_a_state_is_made_of(units: int) -> None:
    clock = SimClock()
    there = World(MemoryJournal(clock.monotonic), families=(Folded(EVERY),), clock=clock)
    there.blobs = MemoryBlobs(clock.monotonic)
    retention = Retention(steps_last=1, steps_every=5)
    registry = {"toy": Folded(EVERY)}

    async def collected() -> None:
        clock.advance(4_000)
        await collect(there.journal, there.blobs, registry, retention, now=clock.now(), dry_run=False)

    async with there.engine() as running:
        job = await held(running, units, LARGE)
        await collected()
    async with there.engine() as running:
        ended = await running.ended(job)
        assert ended.state is State.COMPLETED, ended.failure
        assert await steps(running, job) == await unfolded(LARGE)

        await collected()
        for at_step in (4, 5):  # what was kept follows from the snapshot before it
            fork = await running.client.fork(job, at_step)
            assert (await running.ended(fork.id)).state is State.COMPLETED
        with pytest.raises(TensorsGone):
            await running.client.fork(job, 3)


# -- looking back ---------------------------------------------------------------------------------------------------


@PROMPTS
@pytest.mark.parametrize("at_step", range(ALL + 1))
async def test_a_fork_at_any_step_ends_as_its_parent(at_step: int, prompt: str) -> None:
    there = world()
    async with there.engine() as running:
        parent = await finished(running, prompt)
    async with there.engine() as running:
        fork = await running.client.fork(parent.id, at_step)
        ended = await running.ended(fork.id)

        assert (ended.state, ended.outputs, ended.artifacts) == (State.COMPLETED, parent.outputs, parent.artifacts)
        assert await steps(running, fork.id) == await steps(running, parent.id)
        if at_step < ALL:
            assert len(running.workers[0].ran[0].refolds) == owed(at_step + 1, EVERY)


@pytest.mark.parametrize("changes", [{"guidance": 3.0}, {"prompt": f"{SMALL} start=2"}], ids=str)
@pytest.mark.parametrize("at_step", range(ALL))
async def test_a_fork_with_changes_is_what_it_is_where_all_states_are_stored(
    at_step: int, changes: dict[str, Any]
) -> None:
    made = []
    for there in (world(UNSET), world()):
        async with there.engine() as running:
            parent = await finished(running)
        async with there.engine() as running:
            fork = await running.client.fork(parent.id, at_step, RequestChanges(**changes))
            assert (await running.ended(fork.id)).state is State.COMPLETED
            made.append(await steps(running, fork.id))

    assert made[0] == made[1]


@pytest.mark.parametrize("to_step", range(ALL))
async def test_a_rewind_to_any_step_ends_as_before(to_step: int) -> None:
    there = world()
    async with there.engine() as running:
        job = await held(running, ALL, LARGE)
        await running.client.verbs.pause(job)
        await running.client.verbs.rewind(job, to_step)
    async with there.engine() as running:
        await running.client.verbs.resume(job)
        ended = await running.ended(job)

        assert ended.state is State.COMPLETED, ended.failure
        assert await steps(running, job) == await unfolded(LARGE)
        assert len(running.workers[0].ran[0].refolds) == owed(to_step + 1, EVERY)
        [rewound] = [event for event in await log(running, job) if isinstance(event, JobRewound)]
        assert len(rewound.standing.refolds) == owed(to_step + 1, EVERY)
        assert (await check(there.journal)).problems == ()


@pytest.mark.parametrize("units", range(1, ALL + 1))
async def test_a_terminated_job_is_retried_from_where_it_was(units: int) -> None:
    there = world()
    async with there.engine() as running:
        job = await held(running, units)
        await running.client.verbs.terminate(job)
    async with there.engine() as running:
        await running.client.verbs.retry(job)
        ended = await running.ended(job)

        assert ended.state is State.COMPLETED, ended.failure
        assert await steps(running, job) == await unfolded()
        assert len(running.workers[0].ran[0].refolds) == owed(units, EVERY)


async def test_a_step_is_gone_if_an_output_since_its_snapshot_is() -> None:
    there = world()
    async with there.engine() as running:
        parent = await finished(running, LARGE)
        counted = [step.tensors for step in await running.client.checkpoints(parent.id) if step.loop == "count"]
        del there.blobs._data[counted[3]["m"].digest]  # as retention would: the one after the first snapshot
        for at_step in (5, 6):  # the first of them follows that step, the second the one after it
            with pytest.raises(TensorsGone) as gone:
                await running.client.fork(parent.id, at_step)
            assert gone.value.nearest == (4, 7)
        for at_step in (4, 7):
            fork = await running.client.fork(parent.id, at_step)
            assert (await running.ended(fork.id)).state is State.COMPLETED


async def test_a_move_says_how_many_bytes_are_read_for_it() -> None:
    async with world().engine() as running:
        await running.until(lambda: bool(running.engine.fleet.seats))
        running.add_worker(pool="other")
        await running.until(lambda: len(running.engine.fleet.seats) == 2)
        job = await held(running, 7, LARGE)  # the snapshot of step 3 and two outputs lie behind it
        plan = await running.client.verbs.migrate(job, pool="other", dry_run=True)
        running.workers[0].open()

        output, latent, start = 4 * 4 * WIDE * 2, 4 * 4 * WIDE * 4, 4 * 4 * 4
        assert plan.nbytes == 3 * latent + 2 * output + start - 0


# -- replay ---------------------------------------------------------------------------------------------------------


class Fresh:
    """A device with nothing on it, and the units that it was given."""

    def __init__(self, family: Folded) -> None:
        self.ran: list[WorkUnit] = []
        self._executor = Executor(load_models({"toy": family}), MemoryBlobs(), stores=False)

    async def __call__(self, unit: WorkUnit, frames: list[bytes]) -> StepResult:
        self.ran.append(unit)
        return self._executor.run(unit, frames).result


def other_fold(*arguments: Any) -> Made:
    made = count_fold(*arguments)
    return Made({**made.tensors, "newer": made.tensors["newer"] + 1e-7})


@PROMPTS
@pytest.mark.parametrize("from_step", range(ALL + 1))
async def test_a_log_is_executed_again_from_any_step(from_step: int, prompt: str) -> None:
    there = world()
    async with there.engine() as running:
        events = await log(running, (await finished(running, prompt)).id)
    device = Fresh(Folded(EVERY))

    verdict = await verify(events, Folded(EVERY), device, Contents(there.journal, there.blobs), from_step=from_step)

    assert (verdict.equal, verdict.steps, verdict.pruned) == (True, ALL - from_step, 0), verdict.difference
    refolds = [len(unit.refolds) for unit in device.ran]
    assert refolds == [owed(from_step + 1, EVERY), *[0] * (len(refolds) - 1)][: len(refolds)]


@pytest.mark.parametrize("from_step", range(ALL + 1))
async def test_a_log_that_was_rewound_is_executed_again_from_any_step(from_step: int) -> None:
    there = world()
    async with there.engine() as running:
        job = await held(running, 8)
        await running.client.verbs.rewind(job, 3)
        running.workers[0].open()
        await running.ended(job)
        events = await log(running, job)

    verdict = await verify(
        events, Folded(EVERY), Fresh(Folded(EVERY)), Contents(there.journal, there.blobs), from_step=from_step
    )

    assert verdict.equal, verdict.difference
    assert verdict.steps == 7 + ALL - 3 - from_step


async def verdict_of(family: Folded, from_step: int) -> Verdict:
    there = world()
    async with there.engine() as running:
        events = await log(running, (await finished(running)).id)
    return await verify(events, family, Fresh(family), Contents(there.journal, there.blobs), from_step=from_step)


async def test_another_fold_differs_at_the_first_step_that_it_changes() -> None:
    family = Folded(EVERY, other_fold)

    first, later = [(await verdict_of(family, from_step)).difference for from_step in (0, 6)]

    assert first is not None
    assert (first.node, first.step, first.what) == ("count", 0, "newer")
    assert later is not None
    assert (later.node, later.step, later.what) == ("count", 5, "step")
    assert "newer of step 3, made again" in later.found


# -- what must not go unseen ----------------------------------------------------------------------------------------


async def test_a_fold_that_makes_other_bits_fails_the_job() -> None:
    there = world()
    async with there.engine() as running:
        job = await held(running, 7)
    there.families = (Folded(EVERY, other_fold),)
    async with there.engine() as running:
        ended = await running.ended(job)

    assert (ended.state, ended.failure and ended.failure.kind) == (State.FAILED, "corrupt_checkpoint")
    assert ended.failure is not None
    assert "newer of step 3, made again from what is stored" in ended.failure.message


def flip(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize("prompt", [SMALL, LARGE])
@pytest.mark.parametrize("back", [1, 2])
async def test_a_flipped_bit_in_a_stored_output_is_found_when_it_is_folded(back: int, prompt: str) -> None:
    there = world()
    inline: Any = there.journal
    async with there.engine() as running:
        job = await held(running, 7, prompt)
        output = (await running.client.checkpoints(job))[-back].tensors["m"].digest
    if prompt == LARGE:
        there.blobs._data[output] = flip(there.blobs._data[output])
    else:
        inline._blobs[output] = (flip(inline._blobs[output][0]), inline._blobs[output][1])
    async with there.engine() as running:
        ended = await running.ended(job)

    assert (ended.state, ended.failure and ended.failure.kind) == (State.FAILED, "corrupt_checkpoint")


async def test_an_output_under_another_outputs_name_is_found_by_what_is_made_of_it() -> None:
    """A store that hands out other bytes than it was given, and says nothing."""

    class Lying(MemoryBlobs):
        def get(self, digest: str) -> bytes:
            return self._data[digest]

    there = world()
    there.blobs = Lying()
    async with there.engine() as running:
        job = await held(running, 7, LARGE)
        output = (await running.client.checkpoints(job))[-1].tensors["m"].digest
    there.blobs._data[output] = flip(there.blobs._data[output])
    async with there.engine() as running:
        ended = await running.ended(job)

    assert (ended.state, ended.failure and ended.failure.kind) == (State.FAILED, "corrupt_checkpoint")
    assert ended.failure is not None
    assert "of step 4, made again" in ended.failure.message


async def test_a_family_without_the_fold_fails_at_the_first_step_and_not_at_the_first_resume() -> None:
    class Incomplete(Folded):
        def bodies(self) -> Any:
            return {kind: body for kind, body in super().bodies().items() if not kind.endswith(".fold")}

    async with World(families=(Incomplete(EVERY),)).engine() as running:
        ended = await running.ended((await submitted(running)).id)

    assert ended.failure is not None
    assert (ended.failure.step, "count.fold" in ended.failure.message) == (0, True)


def test_a_checkpoint_from_before_there_were_folds_is_read() -> None:
    class SavedBefore(msgspec.Struct):
        job: Job
        state: Any

    job = Job(id="j", state=State.QUEUED, request=None, model=None, submitted_at=0.0)  # type: ignore[arg-type]
    before = msgspec.msgpack.decode(msgspec.msgpack.encode(SavedBefore(job, None)))

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(Saved(job, None))) == before | {"refolds": []}
