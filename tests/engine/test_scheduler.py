"""What runs next, with whom and where: laws that hold of every line and every fleet, and the cases that people care
about.
"""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cards.wire import ModelIdentity
from engine.scheduling.account import Account
from engine.scheduling.admission import QUEUE_S, Room
from engine.scheduling.forecast import NOTHING
from engine.scheduling.policy import BATCH_FIRST, DEADLINE, ROUND_ROBIN, RUN_TO_COMPLETION, Key, Outlook, Ruled
from engine.scheduling.ready import Demand, Group, Ready
from engine.scheduling.scheduler import Limits, Placement, Scheduler

TOY, OTHER = ModelIdentity("toy", "c", "w"), ModelIdentity("other", "c", "w")
GROUP = Group(TOY, "denoise", "denoise", "8x8")
NAMES = ("a", "b", "c")
_order = itertools.count()


def ready(job: str, *, seconds: float = 0.001, resident: int = 0, peak: int = 0, **fields: Any) -> Ready:
    demand = Demand(seconds, resident, peak)
    fields = {"submitted_at": 0.0, "since": 0.0, "left_s": seconds, "model": TOY, "order": next(_order)} | fields
    return Ready(job=job, demand=demand, **fields)


def room(worker: str = "a", **fields: Any) -> Room:
    """`jobs` are counted, all of one share."""
    given: dict[str, Any] = {"models": (TOY,), "credits": 2, "free_bytes": 100} | fields
    count = given.pop("jobs", 0)
    return Room(worker=worker, jobs={"": count} if count else {}, **given)


def line_up(*steps: Ready, policy: Any = None, now: float = 0.0, **limits: Any) -> Scheduler:
    scheduler = Scheduler(policy or ROUND_ROBIN, Limits(**limits))
    for step in steps:
        scheduler.add(step, now)
    return scheduler


def jobs(placements: Iterable[Placement]) -> list[tuple[str, str]]:
    """Whose steps go to which worker, those of one placement joined by +."""
    return [(each.worker, "+".join(member.job for member in each.members)) for each in placements]


ONE_AT_A_TIME = Ruled(
    name="one at a time", rule=lambda ready, _: (float(ready.home is None), ready.submitted_at), at_once=1
)
"""A job that has begun goes first, and none begins meanwhile."""


# -- laws -----------------------------------------------------------------------------------------------------------


@st.composite
def lines(draw: st.DrawFn) -> list[Ready]:
    """At most one step a job, at home anywhere or nowhere."""
    homes = [draw(st.none() | st.sampled_from((*NAMES, "gone"))) for _ in range(draw(st.integers(0, 12)))]
    return [
        ready(
            f"job-{number}",
            seconds=draw(st.sampled_from((0.001, 0.1, 10.0))),
            resident=draw(st.integers(0, 60)),
            peak=draw(st.integers(0, 120)),
            priority=draw(st.integers(-1, 1)),
            since=draw(st.sampled_from((0.0, 50.0, 90.0))),
            home=home,
            bound=home is not None and draw(st.booleans()),
            group=draw(st.none() | st.just(GROUP)),
            model=draw(st.sampled_from((TOY, TOY, OTHER))),
        )
        for number, home in enumerate(homes)
    ]


@st.composite
def fleets(draw: st.DrawFn) -> list[Room]:
    return [
        room(
            name,
            models=draw(st.sampled_from(((TOY,), (TOY, OTHER)))),
            credits=draw(st.integers(0, 4)),
            outstanding=draw(st.integers(0, 3)),
            queued_s=draw(st.sampled_from((0.0, 0.01, 1.0))),
            free_bytes=draw(st.integers(0, 200)),
            jobs=draw(st.integers(0, 3)),
            draining=draw(st.booleans()),
            jumbo=draw(st.booleans()),
        )
        for name in draw(st.lists(st.sampled_from(NAMES), unique=True))
    ]


LIMITS = st.builds(
    Limits,
    batch_most=st.integers(1, 4),
    batch_wait_s=st.sampled_from((0.0, 5.0)),
    ageing_s=st.sampled_from((20.0, 60.0)),
)
POLICIES = st.sampled_from((ROUND_ROBIN, ONE_AT_A_TIME))


def scheduled(steps: list[Ready], fleet: list[Room], limits: Limits, policy: Any) -> tuple[Scheduler, list[Placement]]:
    scheduler = Scheduler(policy, limits)
    for step in steps:
        scheduler.add(step, 100.0)
    return scheduler, scheduler.plan(copied(fleet), 100.0)


def copied(fleet: Iterable[Room]) -> list[Room]:
    return [replace(one, jobs=one.jobs.copy(), in_use=one.in_use.copy()) for one in fleet]


@given(lines(), fleets(), LIMITS, POLICIES)
def test_a_step_is_placed_once_and_has_left_the_line(
    steps: list[Ready], fleet: list[Room], limits: Limits, policy: Any
) -> None:
    scheduler, placements = scheduled(steps, fleet, limits, policy)

    placed = [member.job for each in placements for member in each.members]
    assert len(placed) == len(set(placed))
    assert sorted(placed + [step.job for step in scheduler.line]) == sorted(step.job for step in steps)


@given(lines(), fleets(), LIMITS, POLICIES)
def test_no_worker_is_given_more_than_it_has_unless_it_is_idle(
    steps: list[Ready], fleet: list[Room], limits: Limits, policy: Any
) -> None:
    _, placements = scheduled(steps, fleet, limits, policy)

    for before in fleet:
        here = [each for each in placements if each.worker == before.worker]
        members = [member for each in here for member in each.members]
        assert len(here) <= before.credits
        assert not (here and before.draining)
        assert all(member.model in before.models for member in members)
        new = [member for member in members if member.home != before.worker]
        assert policy.at_once is None or not new or sum(before.jobs.values()) + len(new) <= policy.at_once
        if before.outstanding + len(members) > 1:
            assert sum(before.bytes_of(member) for member in members) <= max(
                before.free_bytes, 0 if before.outstanding else before.bytes_of(members[0])
            )


@given(lines(), fleets(), LIMITS, POLICIES)
def test_a_step_that_reads_what_a_worker_still_makes_goes_nowhere_else(
    steps: list[Ready], fleet: list[Room], limits: Limits, policy: Any
) -> None:
    _, placements = scheduled(steps, fleet, limits, policy)

    assert all(not member.bound or member.home == each.worker for each in placements for member in each.members)


@given(lines(), fleets(), LIMITS, POLICIES)
def test_nothing_waits_that_an_idle_worker_could_run(
    steps: list[Ready], fleet: list[Room], limits: Limits, policy: Any
) -> None:
    limits = replace(limits, batch_wait_s=0.0, jumbo_s=1000.0)
    scheduler, placements = scheduled(steps, fleet, limits, policy)

    used = {each.worker for each in placements}
    for idle in (one for one in fleet if one.has_place and not (one.outstanding or one.jobs or one.worker in used)):
        assert not [step for step in scheduler.line if not step.bound and idle.serves(step)]


@given(lines(), fleets(), LIMITS, POLICIES)
def test_a_batch_is_of_one_group_and_no_larger_than_allowed(
    steps: list[Ready], fleet: list[Room], limits: Limits, policy: Any
) -> None:
    _, placements = scheduled(steps, fleet, limits, policy)

    for each in placements:
        assert len(each.members) <= limits.batch_most
        assert len(each.members) == 1 or {member.group for member in each.members} == {GROUP}
        assert all(member.home in (None, each.worker) for member in each.members[1:])


@given(lines(), fleets(), LIMITS, POLICIES, st.randoms(use_true_random=False))
def test_the_plan_hangs_on_neither_the_order_of_workers_nor_chance(
    steps: list[Ready], fleet: list[Room], limits: Limits, policy: Any, chance: Any
) -> None:
    _, placements = scheduled(steps, fleet, limits, policy)
    shuffled = list(fleet)
    chance.shuffle(shuffled)

    assert scheduled(steps, shuffled, limits, policy)[1] == placements


@given(st.integers(1, 3), st.integers(1, 20), st.integers(0, 1000))
def test_no_step_starves_behind_ever_more_urgent_and_smaller_ones(workers: int, peak: int, seed: int) -> None:
    """Each worker does one step a second; two small and urgent ones come for each."""
    scheduler = line_up(ready("large", peak=90 + peak, resident=seed % 10, priority=-1), ageing_s=5.0)
    busy: dict[str, list[Ready]] = {name: [] for name in NAMES[:workers]}
    for now in range(100):
        for number in range(2 * workers):
            scheduler.add(ready(f"small-{now}-{number}", peak=30, priority=1, since=float(now)), float(now))
        rooms = [
            room(name, outstanding=len(steps), free_bytes=100 - sum(step.demand.peak_bytes for step in steps))
            for name, steps in busy.items()
        ]
        for placement in scheduler.plan(rooms, float(now)):
            busy[placement.worker] += placement.members
            if placement.members[0].job == "large":
                return
        for steps in busy.values():
            del steps[:1]
    raise AssertionError("it waits still")


# -- cases ----------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_does_not_block_what_does() -> None:
    scheduler = line_up(ready("large", peak=90, priority=1), ready("small", peak=10))

    assert jobs(scheduler.plan([room(outstanding=1, free_bytes=50)], 0.0)) == [("a", "small")]


def test_what_fits_alone_but_not_together_waits_for_the_other() -> None:
    scheduler = line_up(ready("one", resident=60, peak=10), ready("two", resident=60, peak=10))

    assert jobs(scheduler.plan([room()], 0.0)) == [("a", "one")]
    assert jobs(scheduler.plan([room(jobs=1, free_bytes=40)], 0.0)) == []  # between two steps of the first
    assert jobs(scheduler.plan([room()], 0.0)) == [("a", "two")]


def test_a_job_stays_where_its_tensors_are_and_leaves_only_for_an_idle_worker() -> None:
    full = room("a", credits=0, outstanding=2)

    assert jobs(line_up(ready("job", home="a")).plan([room("a", outstanding=1), room("b")], 0.0)) == [("a", "job")]
    assert jobs(line_up(ready("job", home="a")).plan([full, room("b", outstanding=1)], 0.0)) == []
    assert jobs(line_up(ready("job", home="a")).plan([full, room("b")], 0.0)) == [("b", "job")]
    assert jobs(line_up(ready("job", home="gone")).plan([room("b", outstanding=1)], 0.0)) == [("b", "job")]


def test_what_is_too_large_for_a_worker_goes_to_one_that_can_hold_it() -> None:
    large = ready("large", peak=90)
    small, larger = room("a", memory_bytes=50, free_bytes=50), room("b", outstanding=1, memory_bytes=100, free_bytes=40)

    assert jobs(line_up(large).plan(copied([small, larger]), 0.0)) == []
    assert jobs(line_up(large).plan([replace(small), room("b", memory_bytes=100)], 0.0)) == [("b", "large")]
    assert jobs(line_up(replace(large, home="a")).plan([replace(small), room("b")], 0.0)) == [("b", "large")]
    assert jobs(line_up(large).plan([replace(small)], 0.0)) == [("a", "large")]  # it is tried


def test_a_worker_with_its_number_of_jobs_begins_no_other() -> None:
    scheduler = line_up(ready("new"), ready("begun", home="a", since=1.0), policy=ONE_AT_A_TIME)

    assert jobs(scheduler.plan([room(jobs=1)], 0.0)) == [("a", "begun")]
    assert jobs(scheduler.plan([room(jobs=0)], 0.0)) == [("a", "new")]


def test_a_worker_has_its_number_of_jobs_of_each_share() -> None:
    steps = ready("short"), ready("second", submitted_at=1.0), ready("long", left_s=1000.0)
    scheduler = line_up(*steps, policy=RUN_TO_COMPLETION)

    assert jobs(scheduler.plan([room(credits=9, queued_s=-1e6)], 0.0)) == [("a", "short"), ("a", "long")]


def test_a_policy_is_told_how_many_steps_would_go_together() -> None:
    many = [ready(f"job-{n}", group=GROUP, since=1.0) for n in range(3)]
    scheduler = line_up(ready("alone"), *many, policy=BATCH_FIRST, now=1.0, batch_most=4)

    assert jobs(scheduler.plan([room()], 1.1)) == [("a", "job-0+job-1+job-2"), ("a", "alone")]


def test_a_worker_is_sent_more_only_once_little_is_left_of_what_it_has() -> None:
    scheduler = line_up(ready("next"), ready("after"))

    assert jobs(scheduler.plan([room(outstanding=1, queued_s=1.9)], 10.0)) == []
    assert scheduler.due_at == pytest.approx(10.0 + 1.9 - QUEUE_S)
    assert jobs(scheduler.plan([room(outstanding=1, queued_s=0.01)], 11.89)) == [("a", "next"), ("a", "after")]
    assert scheduler.due_at is None


def test_a_busy_worker_is_sent_what_follows_on_its_work_and_nothing_else_that_takes_long() -> None:
    busy: dict[str, Any] = {"outstanding": 1, "queued_s": 0.01}
    follows = ready("running", seconds=1.0, since=1.0, home="a", bound=True)
    other = ready("other", seconds=1.0)

    assert jobs(line_up(other).plan([room(**busy)], 2.0)) == []
    assert jobs(line_up(follows).plan([room(**busy)], 2.0)) == [("a", "running")]
    assert jobs(line_up(follows).plan([room(**busy | {"outstanding": 2})], 2.0)) == []
    assert jobs(line_up(other, follows).plan([room(**busy)], 2.0)) == []
    assert jobs(line_up(replace(other, since=1.5), follows).plan([room(**busy)], 2.0)) == [("a", "running")]
    assert jobs(line_up(other).plan([room()], 2.0)) == [("a", "other")]


def test_steps_of_one_group_go_together() -> None:
    alike = [ready(f"job-{n}", group=GROUP, since=float(n)) for n in range(5)]
    scheduler = line_up(*alike, ready("other", since=0.5), batch_most=4)

    assert jobs(scheduler.plan([room()], 5.0)) == [("a", "job-0+job-1+job-2+job-3"), ("a", "other")]


def test_steps_that_take_long_keep_no_others_waiting() -> None:
    long, short = [[ready(f"{s}-{n}", group=GROUP, seconds=s) for n in range(4)] for s in (0.3, 0.2)]

    assert jobs(line_up(*long, batch_most=4, batch_s=0.5).plan([room()], 0.0)) == [("a", "0.3-0")]
    assert jobs(line_up(*short, batch_most=4, batch_s=0.5).plan([room()], 0.0)) == [("a", "0.2-0+0.2-1")]
    assert jobs(line_up(long[0], batch_most=4, batch_wait_s=9.0).plan([room()], 0.0)) == [("a", "0.3-0")]


def test_a_partner_that_does_not_fit_is_left_for_later() -> None:
    steps = [
        ready("one", group=GROUP, peak=50),
        ready("two", group=GROUP, peak=80),
        ready("three", group=GROUP, peak=40),
    ]
    scheduler = line_up(*steps, batch_most=4)

    assert jobs(scheduler.plan([room(outstanding=1)], 0.0)) == [("a", "one+three")]


def test_a_partner_is_not_fetched_from_another_worker() -> None:
    steps = [ready("one", group=GROUP), ready("two", group=GROUP, home="b"), ready("three", group=GROUP, home="a")]
    scheduler = line_up(*steps, batch_most=4)

    assert jobs(scheduler.plan([room("a"), room("b", credits=0)], 0.0)) == [("a", "one+three")]


def test_a_step_waits_for_partners_as_long_as_it_may_and_others_go_meanwhile() -> None:
    scheduler = line_up(ready("alone", group=GROUP), ready("other", since=1.0), batch_most=2, batch_wait_s=5.0)

    assert jobs(scheduler.plan([room()], 2.0)) == [("a", "other")]
    assert scheduler.due_at == 5.0
    assert jobs(scheduler.plan([room()], 5.0)) == [("a", "alone")]


def test_a_step_that_would_be_late_waits_for_no_partner() -> None:
    scheduler = line_up(ready("alone", group=GROUP, left_s=3.0, deadline=7.0), batch_most=2, batch_wait_s=5.0)

    assert jobs(scheduler.plan([room()], 0.0)) == [("a", "alone")]


def test_two_partners_need_not_wait() -> None:
    steps = [ready("one", group=GROUP), ready("two", group=GROUP)]
    scheduler = line_up(*steps, batch_most=2, batch_wait_s=5.0)

    assert jobs(scheduler.plan([room()], 0.0)) == [("a", "one+two")]


def test_a_long_step_keeps_off_the_last_worker_that_has_none() -> None:
    film = ready("film", seconds=20.0, left_s=900.0)
    rooms = [room("a", outstanding=1, jumbo=True), room("b")]

    with_clips = line_up(film, ready("clip", seconds=0.1, model=OTHER))
    assert jobs(line_up(film).plan(copied(rooms), 1.0)) == [("b", "film")]  # all of the work is long
    assert jobs(with_clips.plan(copied(rooms), 1.0)) == []
    assert jobs(with_clips.plan([room("b")], 2.0)) == [("b", "film")]  # there is no other worker


def test_a_worker_is_kept_free_for_a_large_step_that_has_waited_too_long() -> None:
    """Small ones that come all the time would otherwise go before it for ever."""
    scheduler = line_up(ready("large", peak=90), ready("small", peak=10, since=99.0), ageing_s=60.0)

    assert jobs(scheduler.plan([room(outstanding=1, free_bytes=50, peak_bytes=50)], 100.0)) == []
    assert jobs(scheduler.plan([room()], 101.0)) == [("a", "large"), ("a", "small")]


def test_jobs_at_home_go_on_where_a_large_one_waits_for_their_end() -> None:
    large, new, begun = ready("large", resident=90), ready("new", since=99.0), ready("begun", since=99.0, home="a")
    scheduler = line_up(large, new, begun, ageing_s=60.0)

    assert jobs(scheduler.plan([room(jobs=1, free_bytes=50)], 100.0)) == [("a", "begun")]
    assert jobs(scheduler.plan([room()], 101.0)) == [("a", "large"), ("a", "new")]


def test_what_is_done_before_the_jobs_that_a_large_one_waits_for_may_still_come() -> None:
    film = Account(0.0, None, NOTHING, left_s=3600.0)
    picture, another = ready("picture", left_s=1.0, since=99.0), ready("another film", left_s=3600.0, since=98.0)
    scheduler = line_up(ready("large", resident=90), another, picture, ageing_s=60.0)

    assert jobs(scheduler.plan([room(jobs=1, at_home=[film], free_bytes=50)], 100.0)) == [("a", "picture")]


def test_what_a_large_job_waits_for_has_its_turns_behind_short_jobs_without_end() -> None:
    """A film holds the memory; pictures that are due before it come all the time, and are let in."""
    film = Account(0.0, None, NOTHING, left_s=100.0)
    scheduler = Scheduler(DEADLINE, Limits(ageing_s=60.0))
    scheduler.add(ready("large", resident=90, left_s=500.0), 0.0)
    steps, now = 0, 0.0
    scheduler.add(ready("film", seconds=2.0, left_s=100.0, home="a"), now)
    while now < 600.0:
        for number in range(3):
            scheduler.add(ready(f"picture-{number}", seconds=0.6, left_s=0.6, submitted_at=now, since=now), now)
        [placement, *_] = scheduler.plan([room(credits=1, jobs=1, at_home=[film], free_bytes=50)], now)
        [first] = placement.members
        now += first.demand.seconds
        if first.job == "film":
            steps += 1
            scheduler.add(ready("film", seconds=2.0, left_s=100.0 - 2 * steps, home="a", since=now), now)

    assert steps * 2.0 >= 0.2 * (600.0 - 60.0), "a quarter of the time is for what has waited too long"


def test_the_worker_that_is_spared_for_short_work_is_kept_for_no_long_step() -> None:
    film = ready("film", seconds=20.0, left_s=900.0)
    rooms = [room("a", outstanding=1, queued_s=20.0, jumbo=True, jobs=1), room("b", jobs=1)]
    scheduler = line_up(film, ready("clip", since=99.0, left_s=0.1), now=99.0, ageing_s=60.0)

    assert jobs(scheduler.plan(rooms, 100.0)) == [("b", "clip")]


def test_a_job_whose_later_steps_do_not_fit_beside_others_is_not_begun() -> None:
    def job(name: str) -> Ready:
        return replace(ready(name), demand=Demand(0.001, resident_bytes=30, peak_bytes=1, coming_bytes=50))

    scheduler = line_up(job("first"), job("second"), job("third"))

    assert jobs(scheduler.plan([room(credits=4)], 0.0)) == [("a", "first")], "30 + 30 + 50 is more than there is"
    assert jobs(scheduler.plan([room(credits=4, free_bytes=120)], 0.0)) == [("a", "second"), ("a", "third")]


@pytest.mark.parametrize(
    ("new", "at_home", "batch_most", "first"),
    [
        ({}, 1, 4, "new"),
        ({}, 1, 1, "begun"),  # nothing goes along with anything
        ({}, 4, 4, "begun"),  # enough of them have begun
        ({"joins": None}, 1, 4, "begun"),  # as the steps of a decoder
        ({"joins": replace(GROUP, shape="16x16")}, 1, 4, "begun"),
        ({"seconds": 0.6}, 1, 4, "begun"),  # it would be in the way for longer than it gains
    ],
)
def test_a_job_begins_before_the_steps_that_its_own_may_go_along_with(
    new: dict[str, Any], at_home: int, batch_most: int, first: str
) -> None:
    """Else it would come after the last step of the other, and be alone."""
    begun = ready("begun", seconds=0.01, left_s=9.0, group=GROUP, home="a")
    other = ready("new", **{"seconds": 0.01, "left_s": 9.0, "deadline": 100.0, "joins": GROUP} | new)
    scheduler = line_up(begun, other, policy=DEADLINE, batch_most=batch_most)

    assert jobs(scheduler.plan([room(jobs=at_home)], 1.0))[0] == ("a", first)


def test_a_job_that_would_be_late_by_it_lets_none_begin_before() -> None:
    begun = ready("begun", seconds=0.01, left_s=1.0, group=GROUP, home="a", deadline=2.0)
    new = ready("new", seconds=0.01, left_s=9.0, submitted_at=1.0, joins=GROUP)

    scheduler = line_up(begun, new, policy=DEADLINE, batch_most=4)
    assert jobs(scheduler.plan([room(jobs=1)], 0.995))[0] == ("a", "begun")


def test_a_step_that_is_lined_up_again_keeps_its_turn() -> None:
    scheduler = line_up(first := ready("first", peak=90), ready("second", since=1.0))
    scheduler.add(replace(first, home="a", bound=True), 2.0)

    assert [step.job for step in scheduler.line] == ["first", "second"]
    assert jobs(scheduler.plan([room()], 2.0)) == [("a", "first"), ("a", "second")]


def test_time_changes_the_order_of_what_waits() -> None:
    def rule(ready: Ready, outlook: Outlook) -> Key:
        return (float(outlook.now < (ready.deadline or 0.0) - 10.0),)

    impatient = Ruled(name="impatient", rule=rule)
    scheduler = line_up(ready("easy"), ready("urgent", deadline=50.0), policy=impatient)
    full = room(outstanding=1, credits=1)

    assert jobs(scheduler.plan([full], 1.0)) == [("a", "easy")]
    scheduler.add(ready("easy", deadline=99.0), 1.0)
    scheduler.add(ready("easier", deadline=98.0), 1.0)
    assert jobs(scheduler.plan([room(credits=1)], 45.0)) == [("a", "urgent")]


def test_a_step_goes_where_its_role_is_served_whatever_its_home() -> None:
    rooms = [room("a", roles=("encoder",)), room("b", roles=("denoiser",)), room("c", roles=("denoiser",), coming=True)]
    placements = line_up(
        ready("moves", role="denoiser", home="a"), ready("stays", role="encoder", home="a"), ready("anyone", home="c")
    ).plan(rooms, 0.0)

    assert sorted(jobs(placements)) == [("a", "stays"), ("b", "moves"), ("c", "anyone")]
    assert line_up(ready("nobody", role="decoder")).plan([room("a", roles=("encoder",))], 0.0) == []
