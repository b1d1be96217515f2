"""The named policies: what each promises, on random loads of one device that does one step at a time."""

import itertools
import math
from collections import Counter

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from cards.wire import ModelIdentity
from engine.scheduling.admission import Room
from engine.scheduling.line import Line
from engine.scheduling.policy import (
    DEADLINE,
    FAIR,
    HELD_S,
    POLICIES,
    SHORT_S,
    Outlook,
    Policy,
    Ruled,
    due,
    length,
)
from engine.scheduling.ready import Demand, Group, Ready
from engine.scheduling.scheduler import AGED_EVERY, Limits, Scheduler
from engine.scheduling.shares import Shares

MODEL = ModelIdentity("m", "c", "w")
FOREVER_S = 1e9
LAW = settings(deadline=None, max_examples=60)
EVERY = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


class Load(Struct, frozen=True, kw_only=True):
    """One job."""

    steps: int
    step_s: float = 1.0
    at: float = 0.0
    tenant: str = ""
    priority: int = 0
    deadline: float | None = None
    shape: str = ""


class Ran(Struct, frozen=True):
    job: int
    began: float
    ended: float


def run(policy: Policy, loads: list[Load], until: float = FOREVER_S) -> list[Ran]:
    """What the device does until there is nothing left, or until then."""
    shares, ran, now = Shares(half_life_s=FOREVER_S), list[Ran](), 0.0
    done, since = Counter[int](), {number: load.at for number, load in enumerate(loads)}
    while now < until and (left := [n for n, load in enumerate(loads) if done[n] < load.steps]):
        waiting = [ready(number, loads[number], done[number], since[number]) for number in left]
        there = [one for one in waiting if one.submitted_at <= now and _may(policy, one, waiting)]
        if not there:
            now = min(one.submitted_at for one in waiting if one.submitted_at > now)
            continue
        first = _first(policy, there, now, shares)
        number, seconds = int(first.job), first.demand.seconds
        ran.append(Ran(number, now, now + seconds))
        now += seconds
        done[number], since[number] = done[number] + 1, now
        shares.add(policy.share(first), seconds, now)
    return ran


def _first(policy: Policy, steps: list[Ready], now: float, shares: Shares) -> Ready:
    line = Line(policy, shares)
    for step in steps:
        line.add(replace(step, share=policy.share(step)), now)
    return next(line.in_order(line.homes(), now))


def _may(policy: Policy, one: Ready, waiting: list[Ready]) -> bool:
    """Whether one more job may be in progress, if this one is not yet."""
    begun = [other for other in waiting if other.served_s and policy.share(other) == policy.share(one)]
    return policy.at_once is None or bool(one.served_s) or len(begun) < policy.at_once


def ready(number: int, load: Load, done: int = 0, since: float | None = None) -> Ready:
    return Ready(
        job=str(number),
        order=number,
        tenant=load.tenant,
        priority=load.priority,
        submitted_at=load.at,
        since=load.at if since is None else since,
        deadline=load.deadline,
        demand=Demand(load.step_s),
        left_s=(load.steps - done) * load.step_s,
        served_s=done * load.step_s,
        group=Group(MODEL, "l", "k", load.shape) if load.shape else None,
        model=MODEL,
    )


def ends(ran: list[Ran]) -> dict[int, float]:
    return {step.job: step.ended for step in ran}


LOADS = st.lists(
    st.builds(
        Load,
        steps=st.integers(1, 8),
        step_s=st.sampled_from([0.5, 1.0, 2.0]),
        at=st.integers(0, 20).map(float),
        tenant=st.sampled_from("abc"),
        shape=st.sampled_from(["", "s", "l"]),
    ),
    min_size=1,
    max_size=6,
)


@EVERY
@LAW
@given(loads=LOADS)
def test_the_device_rests_only_when_there_is_nothing_to_do(policy: Policy, loads: list[Load]) -> None:
    ran = run(policy, loads)

    for before, after in itertools.pairwise(ran):
        assert before.ended == after.began or all(
            load.at >= after.began or ends(ran)[number] <= before.ended for number, load in enumerate(loads)
        )


@EVERY
@LAW
@given(loads=LOADS, priority=st.integers(1, 100))
def test_of_two_steps_that_are_new_the_one_of_higher_priority_goes_first(
    policy: Policy, loads: list[Load], priority: int
) -> None:
    low, high = (replace(ready(0, load), since=50.0, priority=0) for load in (loads[0], loads[-1]))
    high = replace(high, priority=priority)

    assert _first(policy, [low, high], 50.0, Shares()) == replace(high, share=policy.share(high))


@LAW
@given(loads=LOADS)
def test_fifo_ends_jobs_in_the_order_in_which_they_came(loads: list[Load]) -> None:
    came = sorted(range(len(loads)), key=lambda number: (loads[number].at, number))

    ran = run(POLICIES["fifo"], loads)

    assert [job for job, _ in itertools.groupby(step.job for step in ran)] == came


@LAW
@given(loads=LOADS)
def test_each_pool_does_one_job_at_a_time(loads: list[Load]) -> None:
    loads = [replace(load, step_s=load.step_s * (10.0 if load.shape else 1.0)) for load in loads]
    long = {number for number, load in enumerate(loads) if load.steps * load.step_s > SHORT_S}

    ran = run(POLICIES["run_to_completion"], loads)

    for pool in (long, set(range(len(loads))) - long):
        jobs = [job for job, _ in itertools.groupby(step.job for step in ran if step.job in pool)]
        assert jobs == sorted(pool, key=lambda number: (loads[number].at, number))


def test_two_pools_share_a_device_evenly() -> None:
    short = [Load(steps=10) for _ in range(30)]
    long = [Load(steps=50, step_s=3.0)]

    ran = run(POLICIES["run_to_completion"], [*short, *long], until=200.0)

    had = sum(step.ended - step.began for step in ran if step.job == len(short))
    assert had == pytest.approx(ran[-1].ended / 2, abs=3.0)


@LAW
@given(steps=st.lists(st.integers(1, 10), min_size=2, max_size=6))
def test_round_robin_is_never_more_than_a_step_ahead_with_one_job(steps: list[int]) -> None:
    ran = run(POLICIES["round_robin"], [Load(steps=count) for count in steps])

    done = Counter[int]()
    for step in ran:
        done[step.job] += 1
        behind = [done[number] for number, count in enumerate(steps) if done[number] < count]
        assert not behind or done[step.job] - min(behind) <= 1


@LAW
@given(data=st.data())
def test_tenants_with_enough_to_do_have_the_same(data: st.DataObject) -> None:
    """However many jobs each has, and however long its steps are: within two of the longest steps."""
    tenants = data.draw(
        st.lists(st.tuples(st.integers(1, 5), st.sampled_from([0.5, 1.0, 3.0])), min_size=2, max_size=4)
    )
    loads = [
        Load(steps=math.ceil(100 / step_s), step_s=step_s, tenant=str(tenant))
        for tenant, (jobs, step_s) in enumerate(tenants)
        for _ in range(jobs)
    ]

    ran = run(FAIR, loads, until=60.0)

    had = dict.fromkeys((load.tenant for load in loads), 0.0)
    for step in ran:
        had[loads[step.job].tenant] += step.ended - step.began
    assert max(had.values()) - min(had.values()) <= 2 * max(load.step_s for load in loads)


@LAW
@given(
    st.lists(
        st.builds(
            lambda at, steps, spare: Load(at=at, steps=steps, deadline=at + steps + spare),
            st.integers(0, 20).map(float),
            st.integers(1, 5),
            st.integers(0, 20),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_deadlines_are_met_whenever_there_is_a_way_to_meet_them(loads: list[Load]) -> None:
    assume(_feasible(loads))

    ran = run(DEADLINE, loads)

    for number, load in enumerate(loads):
        assert load.deadline is not None
        assert ends(ran)[number] <= load.deadline


def _feasible(loads: list[Load]) -> bool:
    """The earliest deadline first finds a schedule of unit steps if there is one (Jackson; Horn 1974)."""
    left = [load.steps for load in loads]
    for now in range(1000):
        there = [n for n, load in enumerate(loads) if left[n] and load.at <= now]
        if there:
            first = min(there, key=lambda n: loads[n].deadline or math.inf)
            left[first] -= 1
            if now + 1 > (loads[first].deadline or math.inf):
                return False
    return not any(left)


def test_of_two_jobs_of_a_kind_the_first_is_done_before_the_second_begins() -> None:
    ran = run(DEADLINE, [Load(steps=4), Load(steps=4, at=1.0)])

    assert [step.job for step in ran] == [0] * 4 + [1] * 4


def test_of_two_jobs_that_are_late_the_first_is_done_before_the_second_begins() -> None:
    ran = run(DEADLINE, [Load(steps=4, deadline=1.0), Load(steps=4, at=1.0, deadline=2.0)])

    assert [step.job for step in ran] == [0] * 4 + [1] * 4


@pytest.mark.parametrize("deadline", [1.0, None])
def test_a_long_job_that_is_late_makes_no_short_one_late(deadline: float | None) -> None:
    film = Load(steps=500, step_s=1.9, deadline=deadline)
    pictures = [Load(steps=6, step_s=0.1, at=5.0 + 10.0 * number) for number in range(8)]

    ran = run(DEADLINE, [film, *pictures])

    assert all(ends(ran)[number] <= due(ready(number, one)) for number, one in enumerate(pictures, 1))
    assert ends(ran)[0] == pytest.approx(500 * 1.9 + 8 * 0.6)


@EVERY
def test_a_long_job_alone_among_short_ones_without_end_has_a_quarter_of_the_time_once_it_is_old(policy: Policy) -> None:
    """And not one step each time that it has waited too long again."""
    scheduler = Scheduler(policy, Limits(ageing_s=20.0))
    film, now, had_s = Load(steps=1000, step_s=2.0, deadline=FOREVER_S), 0.0, 0.0
    scheduler.add(replace(ready(0, film), tenant="archive"), now)
    while now < 1000.0:
        for number in range(1, 4):
            scheduler.add(replace(ready(number, Load(steps=1, step_s=0.6, at=now)), since=now, home="w"), now)
        room = Room(worker="w", models=(MODEL,), credits=1, free_bytes=1)
        [first] = next(iter(scheduler.plan([room], now))).members
        now += first.demand.seconds
        if first.job == "0":
            had_s += 2.0
            scheduler.add(replace(ready(0, film, int(had_s / 2), since=now), tenant="archive", home="w"), now)

    assert had_s >= 0.2 * (now - 20.0)


def test_a_job_that_is_late_is_due_anew_by_what_it_has_left() -> None:
    late = ready(0, Load(steps=4, deadline=3.0), done=1)

    assert DEADLINE.key(late, 0.0) == (0, 3.0)
    assert DEADLINE.key(late, 5.0) == (0, 5.0 + 1.0 + 2 * 3.0)


def test_a_job_without_a_deadline_is_due_by_its_length() -> None:
    short, long = ready(0, Load(steps=4)), ready(1, Load(steps=100))

    assert due(short) == 9.0
    assert due(long) == 801.0
    assert due(replace(short, left_s=1.0, served_s=3.0)) == 9.0


def test_a_tenant_is_charged_for_what_is_placed_before_the_next_step_is_chosen() -> None:
    """In one plan, in two that follow on each other, and until it is known what came of it."""
    scheduler = Scheduler(FAIR)
    for number in range(16):
        scheduler.add(ready(number, Load(steps=1, step_s=30.0, tenant="xy"[number // 8])), 0.0)

    placed = [one.tenant for workers in ("abcdef", "gh") for one in _placed(scheduler, workers)]

    assert placed == ["x", "y"] * 4
    assert scheduler.shares.of("x", 0.0) == scheduler.shares.of("y", 0.0) == 4 * 30.0


def _placed(scheduler: Scheduler, workers: str) -> list[Ready]:
    """What each of some idle workers is given."""
    rooms = [Room(worker=worker, models=(MODEL,), credits=1, free_bytes=1) for worker in workers]
    return [placement.members[0] for placement in scheduler.plan(rooms, 0.0)]


def test_two_pools_have_as_many_of_several_workers() -> None:
    scheduler = Scheduler(POLICIES["run_to_completion"])
    for number in range(8):
        scheduler.add(ready(number, Load(steps=10, step_s=1.0 + 9.0 * (number < 4))), 0.0)

    lengths = [length(one) for one in _placed(scheduler, "abcd")]

    assert lengths == ["long", "short", "short", "short"]  # as many seconds, as far as they can be shared out


def test_the_largest_group_goes_first_until_another_step_has_been_passed_over_for_long() -> None:
    alone = ready(0, Load(steps=1))
    many = ready(1, Load(steps=1, shape="s"))
    key = POLICIES["batch_first"].key

    assert key(many, 1.0, 3) < key(alone, 1.0)
    assert key(alone, HELD_S) < key(replace(many, since=1.0), HELD_S, 3)


@EVERY
def test_a_policy_is_settled_if_neither_time_nor_others_change_a_key(policy: Policy) -> None:
    step = ready(0, Load(steps=3, step_s=2.0))
    outlooks = itertools.product((0.0, HELD_S, 1e6), (1, 3))

    assert (len({policy.key(step, *outlook) for outlook in outlooks}) == 1) == policy.settled


def test_keys_are_made_anew_the_less_often_the_more_steps_wait() -> None:
    """So that they take no more of the time: one key in half a millisecond."""
    made = Counter[int]()

    def rule(ready: Ready, outlook: Outlook) -> tuple[float]:
        made["keys"] += 1
        return (outlook.now,)

    line = Line(Ruled(name="counted", rule=rule), Shares())
    for number in range(1000):
        line.add(ready(number, Load(steps=1)), 0.0)
    for turn in range(1000):
        next(line.in_order(line.homes(), turn * 0.01))

    assert 1000 + 15_000 <= made["keys"] <= 1000 + 20_000  # 1000 steps, and 10 s


def test_of_the_time_of_a_device_a_quarter_is_for_what_has_waited_too_long() -> None:
    """However much longer its steps are."""
    scheduler = Scheduler(DEADLINE, Limits(ageing_s=20.0))
    film, now, numbers = Load(steps=1000, step_s=2.0), 0.0, itertools.count(5)
    done, had = Counter[int](), Counter[bool]()
    for number in range(5):
        scheduler.add(ready(number, film), now)
    while now < 500.0:
        if len(scheduler.line) == 5:  # the last picture is done
            scheduler.add(ready(next(numbers), Load(steps=1, step_s=0.1, at=now)), now)
        [placement] = scheduler.plan([Room(worker="w", models=(MODEL,), credits=1, free_bytes=1)], now)
        [step] = placement.members
        now += step.demand.seconds
        had[int(step.job) < 5] += round(step.demand.seconds * 10)
        if int(step.job) < 5:
            done[int(step.job)] += 1
            scheduler.add(replace(ready(int(step.job), film, done[int(step.job)], now), home="w"), now)

    assert had[True] / had.total() == pytest.approx(1 / AGED_EVERY, abs=0.03)
    assert max(done.values()) - min(done[number] for number in range(5)) <= 1


@EVERY
@LAW
@given(step_s=st.sampled_from([0.3, 1.0, 5.0]), steps=st.integers(1, 4))
def test_under_no_policy_does_a_job_starve_behind_a_flood_of_what_is_more_urgent(
    policy: Policy, step_s: float, steps: int
) -> None:
    """Each step waits until it is old, for the job in progress to end, and for its turn among old ones."""
    limits = Limits(ageing_s=20.0)
    scheduler = Scheduler(policy, limits)
    patient = Load(steps=steps, step_s=step_s, tenant="a")
    done, now, number = 0, 0.0, 1
    scheduler.add(ready(0, patient), now)
    while done < steps:
        flood = Load(steps=1, at=now, tenant=f"b{number}", priority=2, deadline=now, shape="s")
        scheduler.add(ready(number, flood), now)
        [placement] = scheduler.plan([Room(worker="w", models=(MODEL,), credits=1, free_bytes=1)], now)
        number, now = number + 1, now + placement.members[0].demand.seconds
        if placement.members[0].job == "0":
            done += 1
            if done < steps:
                scheduler.add(replace(ready(0, patient, done, now), home="w"), now)
        assert now <= (done + 1) * (limits.ageing_s + (AGED_EVERY + 2) * max(step_s, 1.0))
