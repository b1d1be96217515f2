"""A loop whose state is a fold: little is stored, and what no longer follows from it is found."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from msgspec import UNSET, UnsetType

from engine.actor import Saved
from engine.contents import Contents
from engine.events import StepCompleted
from engine.job import Job, State
from store.blobs import MemoryBlobs
from store.errors import MissingBlob
from store.memory import MemoryJournal
from tests import folded
from tests.engine.folding import (
    EVERY,
    LARGE,
    PROMPTS,
    SMALL,
    STEPS,
    WIDE,
    finished,
    held,
    log,
    other_fold,
    steps,
    submitted,
    unfolded,
    world,
)
from tests.folded import Folded
from tests.sim import World, request


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

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(Saved(job, None))) == before | {"refolds": [], "served_s": 0.0}
