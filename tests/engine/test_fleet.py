"""Where a step runs: laws that hold of every fleet, whatever has happened to it."""

from hypothesis import given
from hypothesis import strategies as st

from cards.wire import Heartbeat, Hello, ModelIdentity, Resources, UnitId, WorkPlan
from engine.fleet import Fleet, Seat, choose

MODEL = ModelIdentity("toy", "c", "w")
NAMES = st.sampled_from("abcd")


def hello(worker: str, *, credits: int = 2, memory_bytes: int = 100, pid: int = 0) -> Hello:
    return Hello(
        worker=worker,
        pool="p",
        pid=pid,
        host="h",
        ranks=1,
        credits=credits,
        memory_bytes=memory_bytes,
        models=(MODEL,),
        fingerprint="f",
    )


def plan(peak_bytes: int = 10) -> WorkPlan:
    return WorkPlan(instance="toy", loop="l", kind="k", step=0, resources=Resources(peak_bytes=peak_bytes))


def unit(number: int, job: str = "j") -> UnitId:
    return UnitId(job, 1, number, 1)


def seat(worker: str, *peaks: int, credits: int = 2, memory_bytes: int = 100) -> Seat:
    outstanding = {unit(n): plan(peak) for n, peak in enumerate(peaks)}
    return Seat(hello=hello(worker, credits=credits, memory_bytes=memory_bytes), heard_at=0.0, outstanding=outstanding)


@st.composite
def seats(draw: st.DrawFn) -> list[Seat]:
    """Fleets of any state that a worker can come to: an idle one may have taken more than fits."""
    made = []
    for name in draw(st.lists(NAMES, unique=True)):
        credits, memory = draw(st.integers(1, 3)), draw(st.integers(0, 100))
        one = seat(name, credits=credits, memory_bytes=memory)
        for number, peak in enumerate(draw(st.lists(st.integers(0, 150), max_size=3))):
            if one.takes(plan(peak)):
                one.outstanding[unit(number)] = plan(peak)
        made.append(one)
    return made


PLANS = st.integers(0, 150).map(plan)
HOMES = st.none() | NAMES


@given(seats(), PLANS, HOMES)
def test_no_worker_is_given_more_than_its_credits(fleet: list[Seat], step: WorkPlan, home: str | None) -> None:
    chosen = choose(fleet, step, home)

    assert chosen is None or len(chosen.outstanding) < chosen.hello.credits


@given(seats(), PLANS, HOMES)
def test_no_worker_is_given_more_than_fits_unless_it_is_idle(
    fleet: list[Seat], step: WorkPlan, home: str | None
) -> None:
    chosen = choose(fleet, step, home)

    if chosen is not None and chosen.outstanding:
        assert chosen.reserved_bytes + step.resources.peak_bytes <= chosen.hello.memory_bytes


@given(seats(), PLANS, NAMES)
def test_a_step_stays_where_its_tensors_are_if_there_is_room(fleet: list[Seat], step: WorkPlan, home: str) -> None:
    chosen = choose(fleet, step, home)

    there = next((one for one in fleet if one.worker == home), None)
    if there is not None and there.takes(step):
        assert chosen is there
    elif there is not None and chosen is not None:
        assert not chosen.outstanding, "only an idle worker is worth moving the tensors to"


@given(seats(), PLANS, HOMES)
def test_a_step_waits_only_if_it_must(fleet: list[Seat], step: WorkPlan, home: str | None) -> None:
    chosen = choose(fleet, step, home)

    if any(not one.outstanding for one in fleet):
        assert chosen is not None
    if home is None or all(one.worker != home for one in fleet):
        assert (chosen is not None) == any(one.takes(step) for one in fleet)


@given(seats(), PLANS, HOMES)
def test_a_step_without_a_home_goes_to_the_emptiest(fleet: list[Seat], step: WorkPlan, home: str | None) -> None:
    chosen = choose([one for one in fleet if one.worker != home], step, home)

    able = [len(one.outstanding) for one in fleet if one.worker != home and one.takes(step)]
    assert chosen is None or len(chosen.outstanding) == min(able)


@given(seats(), PLANS, HOMES, st.randoms(use_true_random=False))
def test_the_choice_does_not_hang_on_the_order_of_seats(
    fleet: list[Seat], step: WorkPlan, home: str | None, chance: object
) -> None:
    shuffled = list(fleet)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]

    assert choose(shuffled, step, home) is choose(fleet, step, home)


def test_a_full_home_is_left_only_for_an_idle_worker() -> None:
    home, busy, idle = seat("home", 1, 1), seat("busy", 1), seat("idle")

    assert choose([home, busy], plan(), "home") is None
    assert choose([home, busy, idle], plan(), "home") is idle
    assert choose([busy, idle], plan(), "home") is idle
    assert choose([busy], plan(), "home") is busy


def test_a_step_that_fits_nowhere_runs_alone() -> None:
    assert choose([seat("a")], plan(1000), None) is not None
    assert choose([seat("a", 1)], plan(1000), None) is None


# -- the fleet --------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(NAMES, st.integers(0, 5), st.sampled_from("xyz"), st.sampled_from(("send", "answer"))))
       .flatmap(lambda moves: st.tuples(st.just(moves), st.permutations("xyz"))))  # fmt: skip
def test_what_is_reserved_is_given_back_whatever_happens(
    history: tuple[list[tuple[str, int, str, str]], list[str]],
) -> None:
    moves, jobs = history
    fleet = Fleet(silent_s=5.0)
    for name in "abcd":
        fleet.join(hello(name), now=0.0)

    for worker, number, job, move in moves:
        if move == "send":
            fleet.seats[worker].outstanding[unit(number, job)] = plan()
        else:
            had = unit(number, job) in fleet.seats[worker].outstanding
            assert fleet.answered(worker, unit(number, job), 0.5) == had
        assert fleet.seats[worker].reserved_bytes == 10 * len(fleet.seats[worker].outstanding)
    for job in jobs:
        for worker in "abcd":
            fleet.dropped(worker, [one for one in fleet.seats[worker].outstanding if one.job == job])

    assert [(one.reserved_bytes, one.free_credits) for one in fleet.seats.values()] == [(0, 2)] * 4


def test_an_answer_counts_once_and_only_from_where_the_unit_is() -> None:
    fleet = Fleet(silent_s=5.0)
    for name in "ab":
        fleet.join(hello(name), now=0.0)
    fleet.seats["a"].outstanding[unit(1)] = plan()

    assert [fleet.answered(worker, unit(1), 0.5) for worker in ("b", "nobody", "a", "a")] == [False, False, True, False]


def test_a_worker_is_silent_once_its_time_has_run_out_and_not_before() -> None:
    fleet = Fleet(silent_s=5.0)
    for name in "ab":
        fleet.join(hello(name), now=0.0)

    assert fleet.heard("b", now=1.0)
    assert fleet.silent(now=5.0) == []
    assert [one.worker for one in fleet.silent(now=5.5)] == ["a"]
    assert len(fleet.silent(now=6.5)) == 2


def test_a_heartbeat_is_kept_until_the_next_and_a_stranger_is_none_of_ours() -> None:
    fleet = Fleet(silent_s=5.0)
    beat = Heartbeat(0, 3, 4)
    fleet.join(hello("a"), now=0.0)

    assert fleet.heard("a", 1.0, beat)
    assert fleet.heard("a", 2.0)
    assert (fleet.seats["a"].beat, fleet.seats["a"].heard_at) == (beat, 2.0)
    assert not fleet.heard("stranger", 1.0, beat)
    assert "stranger" not in fleet.seats


def test_a_message_from_a_worker_that_never_came_is_missed_at_its_next_heartbeat() -> None:
    fleet = Fleet(silent_s=5.0)
    fleet.join(hello("a"), now=0.0)
    fleet.heard("a", now=1.0)

    assert not fleet.missed("a", Heartbeat(0, 0, 0, sent=1, received=0), now=1.0)
    assert fleet.missed("a", Heartbeat(0, 0, 0, sent=2, received=0), now=1.0)


def test_a_message_to_a_worker_may_be_late_and_is_missed_when_it_has_not_come_for_as_long_as_silence_may_last() -> None:
    fleet = Fleet(silent_s=5.0)
    fleet.join(hello("a"), now=0.0)

    def missed(received: int, now: float) -> bool:
        return fleet.missed("a", Heartbeat(0, 0, 0, sent=0, received=received), now)

    fleet.sending("a")
    assert not missed(received=0, now=1.0)
    assert not missed(received=1, now=5.0)
    fleet.sending("a")
    assert not missed(received=1, now=9.0)
    assert not missed(received=1, now=13.0)
    assert missed(received=1, now=14.5)


def test_a_worker_that_does_not_count_misses_nothing() -> None:
    fleet = Fleet(silent_s=5.0)
    fleet.join(hello("a"), now=0.0)
    fleet.sending("a")

    assert not fleet.missed("a", Heartbeat(0, 0, 0), now=100.0)


def test_a_worker_that_joins_again_gives_up_the_seat_it_had() -> None:
    fleet = Fleet(silent_s=5.0)
    assert fleet.join(hello("a", pid=1), now=0.0) is None
    fleet.seats["a"].outstanding[unit(1)] = plan()

    before = fleet.join(hello("a", pid=2), now=1.0)

    assert before is not None
    assert (before.hello.pid, list(before.outstanding)) == (1, [unit(1)])
    assert (fleet.seats["a"].hello.pid, fleet.seats["a"].outstanding) == (2, {})


def test_a_worker_leaves_once() -> None:
    fleet = Fleet(silent_s=5.0)
    fleet.join(hello("a"), now=0.0)

    assert [fleet.leave("a") is not None for _ in range(2)] == [True, False]
    assert fleet.serving(MODEL) == []


def test_only_a_worker_with_the_same_card_and_weights_serves_a_job() -> None:
    fleet = Fleet(silent_s=5.0)
    fleet.join(hello("a"), now=0.0)

    assert len(fleet.serving(MODEL)) == 1
    for other in (ModelIdentity("toy", "c", "other"), ModelIdentity("toy", "other", "w"), ModelIdentity("t", "c", "w")):
        assert fleet.serving(other) == []


def test_short_steps_queue_at_a_worker_and_long_ones_do_not() -> None:
    one = seat("a", 1, 1, credits=16)
    assert not one.takes(plan(1)), "nothing is known of how long its steps take"

    one.took(plan(), seconds=0.5)
    assert not one.takes(plan(1))
    for _ in range(100):
        one.took(plan(), seconds=0.001)
    assert one.takes(plan(1))
    assert not seat("b", 1, 1, credits=2).takes(plan(1))
