"""Who is blamed for a worker's death: what ran, however the death is noticed, and no more than so often in all."""

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from cards.family import Asking, Components, Made, StepBody
from cards.wire import Heartbeat, WorkPlan
from engine import verbs
from engine.events import JobFailed, WorkerLost
from engine.job import Failure, State, fold
from store.memory import MemoryJournal
from tests import toy
from tests.engine.events import submitted
from tests.engine.test_split import DECODER, DENOISER, ENCODER, LARGE, joined
from tests.folded import Folded
from tests.sim import Running, World, request
from tests.splitting import by_role

HOW = "was killed by signal 9"


async def blames(running: Running, job: str) -> list[bool]:
    """Of the deaths that befell a job, whether it was blamed."""
    events = [told.event for told in await running.client.events(job)]
    return [event.blamed for event in events if isinstance(event, WorkerLost)]


async def dead(running: Running) -> str:
    """The worker that a job brings down, once it has."""
    worker = running.workers[-1]
    await running.until(lambda: worker.dead)
    await running.until(running.link.inbox.empty)
    return worker.name


async def test_a_death_that_is_first_noticed_by_a_message_that_cannot_leave_is_blamed_as_any() -> None:
    async with World().engine() as running:
        await learn(running)
        await leave(running)
        poison = await running.client.submit(request("a count die=0", seed=1))
        others = []
        for number in range(3):
            running.add_worker(credits=16)
            name = await dead(running)
            running.link.workers.pop(name)  # its connection is gone, and its process is not yet known to have ended
            others.append(await running.client.submit(request(seed=10 + number)))
            await running.until(lambda name=name: not running.engine.fleet.seats[name].reachable)
            assert running.client.readiness().reasons == ("no worker can be reached",)
            await running.engine.lose(name, HOW)

        running.add_worker()
        assert (await running.ended(poison.id)).failure.kind == "poisoned"  # type: ignore[union-attr]
        assert await blames(running, poison.id) == [True] * 3
        for job in others:
            assert (await running.ended(job.id)).state is State.COMPLETED
            assert True not in await blames(running, job.id)


async def learn(running: Running) -> None:
    """Steps are known to be short, so that those of others may wait behind one."""
    job = await running.client.submit(request())
    await running.ended(job.id)
    for _, figure in running.engine.accounts.costs.known():
        figure.samples, figure.mean_s, figure.deviation_s = 1000, 0.0001, 0.0


async def leave(running: Running) -> None:
    """The only worker goes, and nothing was with it."""
    [name] = running.engine.fleet.seats
    running.link.workers.pop(name)
    await running.engine.lose(name, "told to stop", blame=False)


async def test_a_job_that_finds_its_worker_dead_goes_elsewhere_and_has_no_part_in_it() -> None:
    async with World().engine() as running:
        idle = running.workers[0].name
        await running.until(lambda: idle in running.engine.fleet.seats)
        running.link.workers.pop(idle)
        job = await running.client.submit(request())
        await running.until(lambda: not running.engine.fleet.seats[idle].reachable)
        running.add_worker()

        assert (await running.ended(job.id)).state is State.COMPLETED
        await running.engine.lose(idle, HOW)
        assert await blames(running, job.id) == []


async def test_a_job_whose_step_is_done_and_is_still_being_stored_is_not_blamed() -> None:
    """The worker has said that it is at another one."""
    async with World().engine() as running:
        await learn(running)
        worker = running.workers[0]
        worker.gate, so_far = anyio.Event(), len(worker.ran)
        done = await running.client.submit(request(seed=1))
        await running.until(lambda: len(worker.ran) > so_far)
        runs = await running.client.submit(request(seed=2))
        seat = running.engine.fleet.seats[worker.name]
        await running.until(lambda: len(seat.outstanding) == 2)
        first, second = seat.outstanding
        assert (first.job, second.job) == (done.id, runs.id)
        running.link.tell(worker.name, Heartbeat(1, 0, 0, running=(second,)), ())
        await running.until(running.link.inbox.empty)

        await running.engine.lose(worker.name, HOW)
        await running.engine.ledger.settled()

        assert await blames(running, done.id) == [False]
        assert await blames(running, runs.id) == [True]


async def test_what_was_said_to_run_and_is_answered_is_not_blamed() -> None:
    async with World().engine() as running:
        worker = running.workers[0]
        worker.hold_at = 3
        job = await running.client.submit(request("a count adaptive=1", steps=6))
        await running.until(lambda: worker.gate is not None)
        running.link.tell(worker.name, Heartbeat(0, 0, 0, running=(worker.ran[0].id,)), ())
        await running.until(running.link.inbox.empty)

        [unit] = running.engine.fleet.seats[worker.name].outstanding

        assert running.engine.fleet.seats[worker.name].running == (unit,) == (worker.ran[2].id,)
        assert job.id == unit.job


class Deadly(Folded):
    """Whoever decodes what is large dies of it."""

    def bodies(self) -> Mapping[str, StepBody]:
        bodies = super().bodies()

        def finish(components: Components, plan: WorkPlan, reads: Mapping[str, Any]) -> Made | Asking:
            if reads["x"].numel() > 1000:
                raise toy.Died
            return bodies["finish"](components, plan, reads)

        return {**bodies, "finish": finish}


async def test_a_job_that_kills_those_it_is_moved_to_is_blamed_and_nobody_who_is_there_when_it_comes() -> None:
    family = Deadly()
    family.card = by_role(family.card)
    async with World(families=(family,)).engine(workers=0) as running:
        await joined(running, (ENCODER, DENOISER))
        poison = (await running.client.submit(request(LARGE, seed=99))).id
        others = []
        for turn in range(3):
            running.add_worker(serves=DECODER, credits=8)
            seat = running.engine.fleet.seats[await dead(running)]
            others += [(await running.client.submit(request(seed=3 * turn + n))).id for n in range(3)]
            await running.until(lambda seat=seat: len({unit.job for unit in seat.outstanding}) > 1)
            await running.engine.lose(seat.worker, HOW)
        running.add_worker(serves=DECODER)

        assert (await running.ended(poison)).failure.kind == "poisoned"  # type: ignore[union-attr]
        assert await blames(running, poison) == [True] * 3
        for job in others:
            assert (await running.ended(job)).state is State.COMPLETED
            assert True not in await blames(running, job)


class Flaky(toy.ToyFamily):
    """Each of its steps kills whoever is the first or the second to run it."""

    def __init__(self) -> None:
        super().__init__()
        self._tries = Counter[int]()

    def bodies(self) -> Mapping[str, StepBody]:
        bodies = super().bodies()

        def count(components: Components, plan: WorkPlan, reads: Mapping[str, Any]) -> Made | Asking:
            self._tries[plan.step] += 1
            if self._tries[plan.step] < 3:
                raise toy.Died
            return bodies["count"](components, plan, reads)

        return {**bodies, "count": count}


async def test_a_job_that_kills_workers_and_goes_on_kills_three_times_as_many_at_most() -> None:
    async with World(families=(Flaky(),)).engine() as running:
        poison = (await running.client.submit(request(steps=8))).id
        for _ in range(9):
            await running.engine.lose(await dead(running), HOW)
            running.add_worker()

        ended = await running.ended(poison)
        why = f"workers died running this job, 1 at this step and 9 in all, the last one: {HOW}"
        assert ended.failure == Failure("poisoned", why, "count", 4, 9)


def test_a_loss_that_nobody_is_blamed_for_fails_no_job_whatever_it_has_behind_it() -> None:
    """As after a limit was lowered again."""
    job = replace(fold(None, submitted()), state=State.RUNNING, deaths_in_all=9)
    lost = partial(verbs.lose_worker, job, toy.CARD.program.nodes[0], "w", HOW, max_deaths=3)

    assert [type(event) for event in lost(blamed=False)] == [WorkerLost]
    assert [type(event) for event in lost(blamed=True)] == [WorkerLost, JobFailed]


@pytest.mark.parametrize("engines", [1, 2])
async def test_a_job_brings_down_so_many_workers_in_all_wherever_it_is_sent_and_asked_for_again(
    engines: int,
) -> None:
    """Three workers are there all the time, jobs of others run, it is moved, and its order comes again and again."""
    world = World(MemoryJournal(shared=engines > 1))
    names = ["one", "two"][:engines]
    async with anyio.create_task_group() as tasks:
        places: list[Running] = [await tasks.start(serve, world, name) for name in names]
        for running in places:
            await running.until(lambda running=running: running.engine.lease.held)
        order = request("a count die=1", seed=1)
        poison = (await places[0].client.submit(order, key="k")).id
        others = [await places[0].client.submit(request(seed=seed, steps=20)) for seed in range(2, 8)]
        died = 0
        while not (await places[0].client.job(poison)).terminal:
            found = sum([await bury(running) for running in places])
            died += found
            assert (await places[-1].client.submit(order, key="k")).id == poison
            if engines > 1 and found and died < 3:
                await migrate(places, poison)
            await anyio.sleep(0.001)

        assert (await places[-1].client.submit(order, key="k")).id == poison
        assert (await places[0].client.job(poison)).failure.kind == "poisoned"  # type: ignore[union-attr]
        assert died == 3
        assert (await blames(places[0], poison)).count(True) == 3
        for job in others:
            assert (await places[0].ended(job.id)).state is State.COMPLETED
            assert True not in await blames(places[0], job.id)
        tasks.cancel_scope.cancel()


async def serve(world: World, name: str, *, task_status: "anyio.abc.TaskStatus[Running]") -> None:
    async with world.engine(workers=3, name=name) as running:
        task_status.started(running)
        await anyio.sleep_forever()


async def bury(running: Running) -> int:
    """Tell the engine of the workers that have died, and start others."""
    found = [worker for worker in running.workers if worker.dead]
    for worker in found:
        await running.until(running.link.inbox.empty)
        await running.engine.lose(worker.name, HOW)
        running.workers.remove(worker)
        running.add_worker()
    return len(found)


async def migrate(places: list[Running], job: str) -> None:
    """To the engine that does not have it."""
    owner = (await places[0].client.job(job)).owner
    to = next(running for running in places if running.engine.settings.name != owner)
    await to.client.verbs.migrate(job, engine=to.engine.settings.name)
