"""Jobs of all cards on one worker, in batches that the engine makes as they come: the bits of each alone.

Each is due before those that are there when it comes, so it goes first under the default policy. Those of its model go
on with it, and all others wait. The last of each model is turned on its side, and shares with none but square ones.

LTX-2's forwards have odd elements at these sizes: its steps are batched, and then evaluated one by one. They share in
tests/parity/test_batches.py, as do those of the model of shapes.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import product
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from cards import registry
from cards.wire import WorkPlan, WorkUnit
from engine.scheduling.scheduler import Limits
from tests.parity.every_card import REQUESTS, alone, families, models, submit, world
from tests.parity.reference import Digests, ended
from tests.parity.sharing import Counting, Unmeasured
from tests.parity.test_batches import JOBS as SHORT
from tests.sim import Running, World
from workers.sharing import Sharing

JOBS = [{**job, "steps": job["steps"] + 2} for job in SHORT]
"""Long enough that most forwards share with as many as before: the first time is measured, and makes what each does."""

APART = {"causal", "windowed"}
"""The cards whose steps share with no other's."""

LIMITS = Limits(batch_most=4, batch_s=60.0)
"""However slow the machine is."""

Asked = tuple[int, str]
"""A job: which of `JOBS`, and its model."""

ALL: list[Asked] = [*product(range(len(JOBS)), REQUESTS)]
"""In the order in which they come."""


class Ran(Struct, frozen=True):
    """A step that was executed, with how many, itself among them."""

    job: Asked
    plan: WorkPlan
    batch: int

    @property
    def model(self) -> str:
        return self.job[1]


def changes(number: int, model: str) -> dict[str, Any]:
    """What the job asks for, as far as the card has a choice."""
    recipe = families()[model].card.recipe
    ranges = {"steps": recipe.steps, "guidance": recipe.guidance}
    fixed = {name for name, range in ranges.items() if range.least == range.most}
    size = REQUESTS[model]["size"].split("x")
    shape = {"size": "x".join(reversed(size) if number == len(JOBS) - 1 else size)}
    return shape | {name: value for name, value in JOBS[number].items() if name not in fixed}


@asynccontextmanager
async def one_worker(there: World, sharing: Sharing) -> AsyncIterator[Running]:
    """It is sent one placement at a time, so that how far each job is does not depend on how long a step takes."""
    async with there.engine(workers=0, limits=LIMITS) as running:
        running.add_worker(credits=1)
        running.workers[0].executor.sharing = sharing
        yield running


async def one_by_one(running: Running, jobs: Iterable[Asked]) -> dict[Asked, Digests]:
    return {(number, model): await alone(running, model, **changes(number, model)) for number, model in jobs}


async def as_they_come(running: Running, jobs: Sequence[Asked]) -> tuple[dict[Asked, Digests], list[Ran]]:
    """What they make, and the steps in the order in which they ran. Each comes when the one before has made its first
    step after those of encoders.
    """
    [worker] = running.workers
    ran, begun = len(worker.ran), {unit.id.job for unit in worker.ran}

    def begins(unit: WorkUnit) -> bool:
        first = unit.id.job not in begun and "encode" not in unit.plan.loop
        if first:
            begun.add(unit.id.job)
        return first

    worker.holds = begins
    asked: dict[str, Asked] = {}
    for number, model in jobs:
        due_s = 1000.0 * (len(jobs) - len(asked))
        job = await submit(running, model, deadline_s=due_s, **changes(number, model))
        asked[job] = (number, model)
        if worker.gate is not None:
            await running.until(lambda job=job: job in running.engine.dispatcher.scheduler.line)
            worker.open()
        await running.until(lambda: worker.gate is not None)
    worker.open()
    made = {asked[job]: (await ended(running, job)).steps for job in asked}
    answered = zip(worker.ran[ran:], worker.answered[ran:], strict=True)
    return made, [Ran(asked[unit.id.job], unit.plan, result.batch) for unit, result in answered]


async def test_jobs_of_all_cards_that_come_one_by_one_make_in_batches_the_bits_of_those_alone() -> None:
    async with one_worker(world(), sharing := Counting()) as running:
        expected = await one_by_one(running, ALL)
        assert not sharing.calls
        made, ran = await as_they_come(running, ALL)

    assert {job for job in ALL if made[job] != expected[job]} == set()
    largest = {model: max(one.batch for one in ran if one.model == model) for model in REQUESTS}
    assert {model for model in REQUESTS if largest[model] == 1} == APART
    assert {model for model in REQUESTS if largest[model] >= 3} == REQUESTS.keys() - APART
    assert all(one.plan.together for one in ran if one.batch > 1)
    assert max(sharing.calls) >= 3
    for model in REQUESTS:
        [first, *_, last] = [place for place, one in enumerate(ran) if one.job == (0, model)]
        assert {one.model for one in ran[first:last]} == {*REQUESTS}, f"all others ran while {model}'s first job did"


async def test_where_no_module_goes_part_by_part_they_do_not() -> None:
    """The negative control: in float32, since in bfloat16 almost all is rounded alike."""
    those = [replace(model, precision="float32") for model in models() if model.folder and model.name not in APART]
    opened = registry.load([], those)
    jobs = [(number, model) for number, model in ALL if model in opened and number < 3]
    async with one_worker(World(families=[*opened.values()]), Unmeasured()) as running:
        expected = await one_by_one(running, jobs)
        made, _ = await as_they_come(running, jobs)

    assert {model for _, model in jobs} == {job[1] for job in jobs if made[job] != expected[job]}
