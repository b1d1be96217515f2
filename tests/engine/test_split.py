"""Workers that serve some of the loops, and what a job takes along from one to the next."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from cards import codec
from cards.codec import Parts
from cards.roles import components_of, role_of, roles_of
from cards.shapes.family import FAMILY as SHAPES
from engine.job import State
from tests import toy
from tests.folded import Folded
from tests.measured import GIB, MeasuredToy
from tests.sim import Running, World, digests, request
from tests.sim_worker import SimWorker
from tests.splitting import by_role

ENCODER, DENOISER, DECODER = ("encoder",), ("denoiser",), ("decoder",)
SPLIT = (ENCODER, DENOISER, DECODER)
MANY = (ENCODER, ENCODER, DENOISER, DENOISER, DECODER)
SMALL = "a count"
LARGE = "a count wide=3000"
"""Its tensors are too large for messages."""


def world(snapshot_every: int | UnsetType = UNSET) -> World:
    """Of a toy with a state that is a fold, which is stored at each step unless it is said otherwise."""
    family = Folded(snapshot_every)
    family.card = by_role(family.card)
    return World(families=(family,))


async def joined(running: Running, fleet: Sequence[tuple[str, ...]]) -> list[SimWorker]:
    for serves in fleet:
        running.add_worker(serves=serves)
    await running.until(lambda: len(running.engine.fleet.seats) == len(fleet))
    return running.workers


async def made(running: Running, job: str) -> Any:
    ended = await running.ended(job)
    assert ended.state is State.COMPLETED, ended.failure
    steps = await running.client.checkpoints(job)
    return digests(steps), ended.artifacts


async def log(running: Running, job: str) -> list[Any]:
    """All but what says where and when."""
    _, *events = [told.event for told in await running.client.events(job)]
    return [replace(one, worker="", seconds=0.0) if hasattr(one, "seconds") else one for one in events]


async def test_a_worker_need_not_have_room_for_what_only_others_run() -> None:
    """A counting step takes three GiB, and those that prepare it and finish it have one."""
    async with World(families=[MeasuredToy(by_role(toy.CARD))]).engine(workers=0, patience_s=0.3) as running:
        for serves in SPLIT:
            running.add_worker(serves=serves, memory_bytes=(8 if serves == DENOISER else 1) * GIB)
        await running.until(lambda: len(running.engine.fleet.seats) == 3)

        job = (await running.client.submit(request(guidance=4.0))).id
        assert (await running.ended(job)).failure is None
        assert all(worker.ran for worker in running.workers)


def test_roles_follow_from_what_loops_need() -> None:
    card = SHAPES.card
    assert {loop: role_of(card, loop) for loop in card.loops} == {
        "encode_text": "encoder", "denoise": "denoiser", "decode_vae": "decoder", "render": None
    }  # fmt: skip
    assert roles_of(card) == ("encoder", "denoiser", "decoder")
    assert components_of(card, ["denoiser"]) == ("transformer", "vae")
    assert components_of(card, ()) == tuple(card.components)
    assert roles_of(toy.CARD) == ("denoiser",)


@pytest.mark.parametrize("prompt", [SMALL, LARGE])
@pytest.mark.parametrize("fleet", [SPLIT, MANY], ids=["1:1:1", "2:2:1"])
async def test_split_fleets_make_what_one_worker_makes(fleet: Sequence[tuple[str, ...]], prompt: str) -> None:
    async with world().engine(workers=1) as running:
        jobs = [(await running.client.submit(request(prompt, seed=seed))).id for seed in range(5)]
        inline = [(await made(running, job), await log(running, job)) for job in jobs]
    async with world().engine(workers=0) as running:
        workers = await joined(running, fleet)
        jobs = [(await running.client.submit(request(prompt, seed=seed))).id for seed in range(5)]
        split = [(await made(running, job), await log(running, job)) for job in jobs]

        assert split == inline
        for worker in workers:
            assert {role_of(by_role(toy.CARD), unit.plan.loop) for unit in worker.ran} <= set(worker.serves)
        assert all(worker.ran for worker in workers[1:])
        await running.until(lambda: all(not worker.executor.resident.held().tensors for worker in workers))


async def test_split_fleets_make_the_shapes_of_one_worker() -> None:
    async def clips(fleet: Sequence[tuple[str, ...]]) -> list[Any]:
        async with World(families=(SHAPES,)).engine(workers=0) as running:
            workers = await joined(running, fleet)
            asked = [replace(request("a red circle", steps=1, seed=seed), model="shapes") for seed in range(2)]
            jobs = [(await running.client.submit(one)).id for one in asked]
            made_of = [await made(running, job) for job in jobs]
            for worker in workers:
                loaded = worker.executor._models["shapes"].components._loaded
                assert loaded.keys() <= set(components_of(SHAPES.card, worker.serves))
            return made_of

    assert await clips(SPLIT) == await clips(MANY) == await clips([()])


@pytest.mark.parametrize("snapshot_every", [UNSET, 3, 1 << 30])
async def test_what_was_never_stored_is_fetched_and_not_made_again(snapshot_every: int | UnsetType) -> None:
    async with world(snapshot_every).engine(workers=1) as running:
        inline = await made(running, (await running.client.submit(request(LARGE, steps=7))).id)
    async with world(snapshot_every).engine(workers=0) as running:
        _encoder, _denoiser, decoder = await joined(running, SPLIT)
        decoder.executor._refold = _never  # type: ignore[method-assign]
        job = await running.client.submit(request(LARGE, steps=7))

        assert await made(running, job.id) == inline
        assert decoder.fetcher.fetched.tensors > 0
        assert decoder.fetcher.fetched.failed == 0


def _never(*arguments: Any) -> None:
    raise AssertionError("nothing need be made again")


async def test_a_job_that_moves_to_and_fro_with_a_state_that_is_a_fold_stores_and_makes_the_same() -> None:
    async with world(3).engine(workers=1) as running:
        inline = await made(running, (await running.client.submit(request(LARGE, steps=20))).id)
    async with world(3).engine(workers=0) as running:
        for pool in ("one", "other"):
            running.add_worker(pool=pool)
        await running.until(lambda: len(running.engine.fleet.seats) == 2)
        job = (await running.client.submit(request(LARGE, steps=20))).id
        for n in range(6):
            await running.until(lambda n=n: running.engine.results.steps > 3 * n)  # type: ignore[misc]
            await running.client.verbs.migrate(job, pool=("other", "one")[n % 2])

        assert await made(running, job) == inline
        assert sum(worker.fetcher.fetched.tensors for worker in running.workers) >= 6


@pytest.mark.parametrize("trouble", ["forgotten", "damaged", "silent"])
@pytest.mark.parametrize("snapshot_every", [UNSET, 1 << 30])
async def test_what_does_not_come_is_read_or_made_again(snapshot_every: int | UnsetType, trouble: str) -> None:
    async with world(snapshot_every).engine(workers=1) as running:
        inline = await made(running, (await running.client.submit(request(LARGE))).id)
    async with world(snapshot_every).engine(workers=0) as running:
        _encoder, denoiser, decoder = await joined(running, SPLIT)
        meddle(denoiser, decoder, trouble)
        job = await running.client.submit(request(LARGE))

        assert await made(running, job.id) == inline
        assert (decoder.fetcher.fetched.tensors, decoder.fetcher.fetched.failed > 0) == (0, True)
        assert denoiser.ran
        assert not [told for told in await running.client.events(job.id) if told.type == "worker_lost"]


def meddle(holder: SimWorker, asker: SimWorker, trouble: str) -> None:
    """When the asker's turn comes, the holder is in trouble."""

    def damaged(job: str, digest: str) -> Parts | None:
        parts = codec.parts(holder.executor.resident.find(job, digest))  # type: ignore[arg-type]
        return parts[0], memoryview(bytes(len(parts[1])))

    match trouble:
        case "forgotten":
            holder.lends = lambda job, digest: None
        case "damaged":
            holder.lends = damaged
        case _:
            asker.peers = {}


async def test_a_worker_that_is_left_keeps_what_it_holds_until_the_next_one_has_answered() -> None:
    async with world().engine(workers=0) as running:
        encoder, denoiser, _decoder = await joined(running, SPLIT)
        denoiser.hold_at = 1
        job = await running.client.submit(request(LARGE))
        await running.until(lambda: denoiser.gate is not None)
        assert encoder.executor.resident.held().tensors > 0

        denoiser.open()
        await running.until(lambda: not encoder.executor.resident.held().tensors)
        await running.ended(job.id)


async def test_a_worker_that_dies_while_it_fetches_costs_nothing_that_was_held() -> None:
    """The job goes on from the worker that it left."""
    async with world(1 << 30).engine(workers=1) as running:
        inline = await made(running, (await running.client.submit(request(LARGE))).id)
    async with world(1 << 30).engine(workers=0) as running:
        _encoder, denoiser, decoder = await joined(running, SPLIT)
        decoder.frozen = True
        job = await running.client.submit(request(LARGE))
        await running.until(lambda: bool(decoder.fetches))
        running.add_worker(serves=DECODER)
        await running.until(lambda: len(running.engine.fleet.seats) == 4)
        await running.engine.lose(decoder.name, "its host is gone", blame=True)
        another = running.workers[-1]
        another.executor._refold = _never  # type: ignore[method-assign]

        assert await made(running, job.id) == inline
        assert another.fetcher.fetched.tensors > 0
        await running.until(lambda: not denoiser.executor.resident.held().tensors)


@pytest.mark.parametrize("lost", ["nobody", "holder", "asker", "both"])
async def test_no_worker_keeps_a_job_that_was_cancelled_while_it_moved(lost: str) -> None:
    async with world().engine(workers=0) as running:
        _, holder, asker = await joined(running, SPLIT)
        asker.frozen = True
        job = await running.client.submit(request(LARGE))
        await running.until(lambda: bool(asker.fetches))
        if lost in ("holder", "both"):
            await running.engine.lose(holder.name, "gone", blame=False)
        await running.client.cancel(job.id)
        if lost in ("asker", "both"):
            await running.engine.lose(asker.name, "gone", blame=False)
        asker.frozen = False

        assert (await running.ended(job.id)).state is State.CANCELLED
        there = [worker for worker in running.workers if worker.name in running.engine.fleet.seats]
        await running.until(lambda: all(not worker.executor.resident.held().tensors for worker in there))


async def test_others_run_while_tensors_are_coming_and_their_job_goes_on_in_order() -> None:
    async with world().engine(workers=0) as running:
        for pool in ("one", "other"):
            running.add_worker(pool=pool, credits=8)
        await running.until(lambda: len(running.engine.fleet.seats) == 2)
        one, other = running.workers
        first, second = [(await running.client.submit(request(LARGE, steps=40, seed=seed))).id for seed in (1, 2)]
        await running.client.verbs.migrate(first, pool="other")
        await running.client.verbs.migrate(second, pool="one")
        await running.until(lambda: first in ran(other) and second in ran(one)[-3:])
        other.carries = False
        await running.client.verbs.migrate(second, pool="other")
        await running.until(lambda: second in {unit.id.job for unit in other.fetches})
        before = len(other.ran)

        assert (await running.ended(first)).state is State.COMPLETED
        assert second not in ran(other)[before:]
        other.carries = True
        assert (await running.ended(second)).state is State.COMPLETED
        steps = [unit.plan.step for unit in other.ran[before:] if unit.id.job == second and unit.plan.loop == "count"]
        assert steps == list(range(steps[0], 40))


def ran(worker: SimWorker) -> list[str]:
    return [unit.id.job for unit in worker.ran]


async def test_an_encoder_pool_that_fails_holds_up_only_the_jobs_that_are_to_be_encoded() -> None:
    async with world().engine(workers=0, max_active=2) as running:
        encoder, denoiser, _decoder = await joined(running, SPLIT)
        denoiser.hold_at = 1
        under_way = [(await running.client.submit(request(seed=seed))).id for seed in range(2)]
        await running.until(lambda: denoiser.gate is not None and len(encoder.ran) == 2)
        encoder.dead = True
        await running.engine.lose(encoder.name, "its host is gone", blame=False)
        waiting = [(await running.client.submit(request(seed=9 + seed))).id for seed in range(3)]
        denoiser.open()

        for job in under_way:
            assert (await running.ended(job)).state is State.COMPLETED
        for job in waiting:
            told = await running.client.job(job)
            assert (told.open, told.deaths) == (True, 0)
        await running.until(lambda: waiting[0] in running.engine.ledger.actors)
        held_up = running.client.held_up(await running.client.job(waiting[0]))
        assert held_up == "no worker serves as encoder for 'toy' now"
        assert not running.client.servable("toy")
        assert running.client.readiness().reasons == ("no worker serves as encoder, which 'toy' needs",)

        running.add_worker(serves=ENCODER)
        for job in waiting:
            assert (await running.ended(job)).state is State.COMPLETED
        assert running.client.servable("toy")


async def test_a_worker_that_is_told_to_leave_stays_until_its_tensors_are_elsewhere() -> None:
    async with world().engine(workers=0) as running:
        encoder, denoiser, _decoder = await joined(running, SPLIT)
        denoiser.hold_at = 1
        job = await running.client.submit(request(LARGE))
        await running.until(lambda: denoiser.gate is not None)
        await running.client.drain_worker(encoder.name)
        assert not encoder.dead

        denoiser.open()
        await running.until(lambda: encoder.dead)
        assert (await running.ended(job.id)).state is State.COMPLETED


async def test_the_fleet_says_what_serves_and_what_came() -> None:
    async with world().engine(workers=0) as running:
        await joined(running, SPLIT)
        await running.ended((await running.client.submit(request(LARGE))).id)
        await running.until(lambda: sum(seen.fetched.tensors for seen in running.client.workers()) == 2)

        assert [seen.serves for seen in running.client.workers()] == list(SPLIT)
