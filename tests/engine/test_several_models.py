"""Several models on a device with room for some: they take turns, whatever the policy, and nobody waits for ever."""

import itertools
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cards.card import ModelCard
from cards.family import Components, Made, StepBody
from cards.lazy import Lazy
from cards.loop import Done, LoopState
from cards.wire import ModelIdentity, Weights, WorkPlan
from engine.job import State
from engine.scheduling import switching
from engine.scheduling.admission import Room
from engine.scheduling.policy import DEADLINE, ROUND_ROBIN
from engine.scheduling.ready import Demand, Ready
from engine.scheduling.scheduler import Limits, Scheduler
from engine.scheduling.switching import TURNS, Device, Turns, Wish, absent, after, prefer
from tests import toy
from tests.sim import Running, SimClock, World, digests, request
from tests.toy import ToyLoop

STEP_S = 0.5
EXPERTS = ("e/high", "e/low")


class Bench:
    """A device with room for so many components of one byte, in virtual time. Every job has a step after each step."""

    def __init__(self, load_s: float, models: int, room: int, policy: Any = ROUND_ROBIN, **limits: Any) -> None:
        self.models = [ModelIdentity(f"m{number}", "c", "w") for number in range(models)]
        self.now = self.longest_wait = 0.0
        self.loads = self.steps = 0
        self.had: Counter[str] = Counter()
        self.added: dict[str, float] = {}
        self.order: list[str] = []
        self.turns: list[bool] = []
        """Whether it was asked whose turn it is, at each step."""
        self._scheduler = Scheduler(policy, Limits(**limits))
        weights = {f"{model.name}/dit": Weights(1, load_s) for model in self.models}
        self._device = Device(resident=(), weights=weights, began=0.0, room_bytes=room)
        self._modules: Any = None
        self._orders = itertools.count()

    def add(self, job: str, model: int = 0, **fields: Any) -> None:
        """The job's next step."""
        self.added[job] = self.now
        given = {"submitted_at": 0.0, "left_s": STEP_S} | fields
        step = Ready(
            job=job,
            order=next(self._orders),
            since=self.now,
            demand=Demand(STEP_S),
            model=self.models[model],
            needs=(f"m{model}/dit",),
            **given,
        )
        self._scheduler.add(step, self.now)

    def step(self) -> None:
        models = tuple(self.models)
        room = Room(worker="w", models=models, credits=2, free_bytes=100, device=self._device, modules=self._modules)
        [placement] = self._scheduler.plan([room], self.now)
        [ready] = placement.members
        self.turns.append(room.turn is not None)
        wish = switching.wish_of(ready)
        loads = absent(self._device, wish)
        self.longest_wait = max(self.longest_wait, self.now - ready.since)
        self.now += switching.loading_s(self._device, loads)
        self._device = replace(after(self._device, wish, self.now), last=ready.job)
        self._modules = ready.modules
        self.loads += len(loads)
        self.steps += 1
        self.now += STEP_S
        self.had[ready.model.name] += 1
        self.order.append(ready.job)
        again = replace(ready, order=next(self._orders), since=self.now)
        self._scheduler.add(again, self.now)


@settings(max_examples=20, deadline=None)
@given(st.floats(0.1, 5.0), st.integers(2, 4), st.integers(1, 3), st.integers(1, 3), st.sampled_from((5.0, 60.0)))
def test_models_take_turns_and_nobody_starves(
    load_s: float, models: int, room: int, jobs: int, ageing_s: float
) -> None:
    bench = Bench(load_s, models, room, ageing_s=ageing_s)
    for number in range(models * jobs):
        bench.add(f"j{number}", number % models)
    for _ in range(600):
        bench.step()

    turn = TURNS.lasts(load_s) + load_s + (jobs + 1) * STEP_S
    assert bench.longest_wait <= models * turn + models * jobs * STEP_S
    assert len(bench.had) == models
    assert bench.loads <= models + bench.now / TURNS.lasts(load_s)


def test_what_is_most_urgent_does_not_wait_for_the_turn_of_others() -> None:
    bench = Bench(2.0, models=2, room=1)
    bench.add("usual", 0)
    for _ in range(4):
        bench.step()
    bench.add("urgent", 1, priority=1)
    bench.step()

    assert bench.order[-1] == "urgent"


def test_what_has_waited_too_long_has_its_turn_beside_what_is_more_urgent() -> None:
    bench = Bench(2.0, models=2, room=1, ageing_s=10.0)
    bench.add("usual", 0)
    bench.add("urgent", 1, priority=1)
    for _ in range(400):
        bench.step()

    assert bench.had["m0"] > 5
    assert bench.longest_wait <= 10.0 + TURNS.lasts(2.0) + 2 * STEP_S
    assert bench.loads < 30


@pytest.mark.parametrize("room", [1, 2])
def test_a_worker_that_holds_everything_is_never_asked_who_is_next(room: int) -> None:
    bench = Bench(2.0, models=2, room=room)
    bench.add("a", 0)
    bench.add("b", 1)
    for _ in range(10):
        bench.step()

    assert bench.turns == [room == 1] * 10
    assert (bench.order == ["a", "b"] * 5) == (room == 2)


def test_steps_with_the_adapters_of_the_last_one_go_first_for_a_while() -> None:
    bench = Bench(1.0, models=1, room=1)
    for job, lora in (("a", "x"), ("b", "y"), ("c", "x"), ("d", "y")):
        bench.add(job, adapters=((lora, 1.0),))
    for _ in range(400):
        bench.step()

    changes = sum((one in "ac") != (other in "ac") for one, other in itertools.pairwise(bench.order[100:]))
    assert changes < 100, "taking turns they are 299"
    assert bench.longest_wait <= Limits().adapters_s + 4 * STEP_S


@pytest.mark.parametrize(
    ("asked", "following"),
    [
        ({"deadline": 2.5}, "b"),  # it is 1.5 by then, and the step takes half a second
        ({"submitted_at": 1.5}, "b"),  # as is decent where no deadline was asked for
        ({"deadline": 1.2}, "a"),  # that cannot be met any more
        ({"deadline": 100.0}, "a"),
    ],
    ids=["deadline", "no deadline", "late", "much time"],
)
def test_adapters_make_nobody_late(asked: dict[str, float], following: str) -> None:
    bench = Bench(1.0, models=1, room=1, policy=DEADLINE)
    bench.add("a", adapters=(("x", 1.0),), deadline=50.0)
    bench.step()
    bench.add("b", adapters=(("y", 1.0),), **asked)
    bench.step()

    assert bench.order == ["a", following]


def test_a_deadline_that_can_still_be_met_is_met_though_it_takes_loading() -> None:
    bench = Bench(12.0, models=2, room=1)
    bench.add("film", 0)
    for _ in range(10):
        bench.step()
    bench.add("due", 1, deadline=bench.now + 20.0)
    while bench.order[-1] != "due":
        bench.step()

    assert 12.0 < bench.now - bench.added["due"] <= 20.0


# -- two experts and room for one -----------------------------------------------------------------------------------


def experts(*resident: str, room: int = 1, last: str = "") -> Device:
    weights = {name: Weights(1, 2.0) for name in (*EXPERTS, "a/dit")}
    return Device(resident=resident, weights=weights, began=0.0, room_bytes=room, last=last)


def of_experts(job: str, since: float = 0.0) -> Wish:
    return Wish("e", EXPERTS, since, 1.0, job)


def test_of_two_experts_one_is_enough_for_the_job_that_ran_last() -> None:
    assert absent(experts("a/dit"), of_experts("j")) == {"e/high"}
    assert absent(experts("e/low", last="j"), of_experts("j")) == frozenset()
    assert absent(experts("e/low", last="j"), of_experts("other")) == {"e/high"}
    assert absent(experts("e/low", room=2), of_experts("j")) == {"e/high"}
    assert absent(experts(*EXPERTS, room=2), of_experts("j")) == frozenset()


def test_jobs_of_two_experts_take_turns_like_models() -> None:
    here = experts("e/low", last="j")
    wishes = [of_experts("j", 4.0), of_experts("other", 0.0)]
    early, late = prefer(here, wishes, 5.0), prefer(here, wishes, TURNS.lasts(2.0))

    assert [early.goes_first(here, wish) for wish in wishes] == [True, False]
    assert [late.goes_first(here, wish) for wish in wishes] == [False, True]


def test_what_a_step_will_have_loaded_takes_the_place_of_what_it_does_not_need() -> None:
    assert after(experts("a/dit"), of_experts("j"), 7.0) == replace(experts("e/high"), began=7.0)
    assert after(experts("a/dit", "e/high", room=2), of_experts("j"), 7.0).resident == ("e/high", "e/low")
    assert after(experts("e/high", room=2, last="j"), Wish("a", ("a/dit",), 0.0), 7.0).resident == ("e/high", "a/dit")
    assert after(experts("e/low", last="j"), of_experts("j"), 7.0) == experts("e/low", last="j")


def test_a_bargain_does_not_make_others_wait_for_ever() -> None:
    wishes = [Wish("b", ("b/dit",), 0.0, 0.1), Wish("c", ("c/dit",), 50.0, 100.0)]
    weights = {"b/dit": Weights(1, 5.0), "c/dit": Weights(1, 0.1)}
    here = Device(resident=(), weights=weights, began=0.0)

    assert prefer(here, wishes, 60.0, Turns(most_s=90.0)).models == {"c"}
    assert prefer(here, wishes, 91.0, Turns(most_s=90.0)).models == {"b"}


# -- in a world -----------------------------------------------------------------------------------------------------


class Weighed(toy.ToyFamily):
    """A toy of its own name whose counting steps take a component of ten bytes."""

    def __init__(self, name: str) -> None:
        card: ModelCard = replace(toy.CARD, name=name)
        super().__init__(card, f"{name}-weights")
        self.loops = {of: Named(loop, name) for of, loop in self.loops.items()}  # type: ignore[assignment]
        self.loads = 0

    def load(self, device: str) -> Components:
        return Lazy({"counter": 10}, self._load)

    def _load(self, name: str) -> object:
        self.loads += 1
        return object()

    def bodies(self) -> Mapping[str, StepBody]:
        bodies = super().bodies()

        def count(components: Components, plan: WorkPlan, reads: Mapping[str, Any]) -> Made:
            assert components["counter"] is not None
            made = bodies["count"](components, plan, reads)
            assert isinstance(made, Made)
            return made

        return {**bodies, "count": count}


class Named(ToyLoop):
    """A toy's loop, in the model of this name."""

    def __init__(self, loop: ToyLoop, instance: str) -> None:
        super().__init__(loop.semantics, loop._outputs)
        self._instance = instance

    def next(self, state: LoopState) -> WorkPlan | Done:
        plan = super().next(state)
        return replace(plan, instance=self._instance) if isinstance(plan, WorkPlan) else plan


async def made(running: Running, job: str) -> Any:
    assert (await running.ended(job)).state is State.COMPLETED
    return digests(await running.client.checkpoints(job))


@pytest.mark.parametrize("policy", ["round_robin", "deadline"])
async def test_two_models_in_room_for_one_are_loaded_seldom_and_their_jobs_end_with_the_bits_of_each_alone(
    policy: str,
) -> None:
    asked = [replace(request(steps=60, seed=seed), model=model) for seed, model in enumerate(("one", "other") * 2)]
    alone = []
    for one in asked:
        async with World(families=[Weighed(one.model)]).engine() as running:
            alone.append(await made(running, (await running.client.submit(one)).id))

    families = [Weighed("one"), Weighed("other")]
    async with World(families=families, clock=SimClock()).engine(workers=0, policy=policy) as running:
        jobs = [(await running.client.submit(one)).id for one in asked]
        await running.until(lambda: len(running.engine.ledger.actors) == len(jobs))
        running.add_worker(weights_bytes=10)

        assert [await made(running, job) for job in jobs] == alone
        assert sum(family.loads for family in families) < 10, "taking turns step by step they are 240"
        [worker] = running.client.capacity().workers
        shown = {one.name: one for one in worker.components}
        assert shown.keys() == {"one/counter", "other/counter"}
        assert (worker.weights_bytes, sum(one.resident for one in worker.components)) == (10, 1)
        assert all(one.nbytes == 10 and one.loading_s > 0 for one in worker.components)
