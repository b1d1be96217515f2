"""Where a step runs: laws that hold of every fleet, whatever has happened to it."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cards.wire import CacheUse, Heartbeat, Hello, ModelIdentity, UnitId
from engine.fleet import AtHome, Fleet, Reserved, Seat
from engine.scheduling.account import Account
from engine.scheduling.admission import Room
from engine.scheduling.forecast import NOTHING
from engine.scheduling.ready import Demand

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


def reserved(batch: int, peak_bytes: int = 10, seconds: float = 0.1) -> Reserved:
    return Reserved(batch=batch, model="toy", demand=Demand(seconds, 0, peak_bytes), expected_s=seconds)


def unit(number: int, job: str = "j") -> UnitId:
    return UnitId(job, 1, number, 1)


def seat(worker: str, *units: Reserved, credits: int = 2, memory_bytes: int = 100) -> Seat:
    outstanding = {unit(n): one for n, one in enumerate(units)}
    return Seat(hello=hello(worker, credits=credits, memory_bytes=memory_bytes), heard_at=0.0, outstanding=outstanding)


def account(*, resident_bytes: int = 0, coming_bytes: int = 0) -> Account:
    return Account(0.0, None, NOTHING, share="somebody", resident_bytes=resident_bytes, coming_bytes=coming_bytes)


def room(seat: Seat, now: float = 0.0) -> Room:
    return seat.room(AtHome(), {"toy": 0}, jumbo_s=5.0, now=now)


# -- what a worker has left -------------------------------------------------------------------------------------


def test_units_of_a_batch_take_one_credit_and_all_of_their_bytes() -> None:
    one = seat("a", reserved(1, 10), reserved(1, 20), reserved(2, 5), credits=4)

    assert (one.placements, one.free_credits, one.reserved_bytes) == (2, 2, 35)


def test_what_runs_are_all_units_of_the_batch_that_was_sent_first() -> None:
    one = seat("a", reserved(1), reserved(1), reserved(2))

    assert one.running == (unit(0), unit(1))
    del one.outstanding[unit(0)]
    assert one.running == (unit(1),)
    assert seat("b").running == ()


def test_short_steps_queue_at_a_worker_and_long_ones_do_not() -> None:
    def has_place(*seconds: float, credits: int = 16, after_s: float = 0.0) -> bool:
        units = (reserved(batch, seconds=one) for batch, one in enumerate(seconds, start=1))
        return room(seat("a", *units, credits=credits), now=after_s).has_place

    assert not has_place(9.0)
    assert has_place(9.0, after_s=8.99), "the next one is there when the first is done"
    assert has_place(9.0, after_s=20.0)
    assert not has_place(9.0, 0.1, after_s=20.0), "only the first has begun"
    assert has_place(0.001, 0.001)
    assert not has_place(0.001, 0.001, credits=2)


def test_a_job_whose_tensors_are_coming_is_in_nobodys_way_and_takes_what_it_takes() -> None:
    coming = replace(reserved(1, 10, seconds=9.0), fetches=True)
    one = seat("a", credits=8)
    one.outstanding = {unit(1, "j"): coming, unit(2, "j"): reserved(2, 10, seconds=9.0)}
    alone = room(one)
    assert (alone.outstanding, alone.coming, alone.queued_s, alone.credits, alone.free_bytes) == (0, True, 0.0, 6, 80)
    assert one.running == (unit(1, "j"),)

    one.outstanding |= {unit(3, "k"): reserved(3, 10, seconds=1.0)}
    assert (room(one).outstanding, room(one).queued_s) == (1, 1.0)
    assert one.running == (unit(3, "k"),)
    one.outstanding |= {unit(4, "l"): replace(reserved(4, seconds=2.0), fetches=True)}
    assert (room(one).outstanding, room(one).queued_s) == (2, 3.0), "of those that come one at a time stands aside"


def test_a_death_is_blamed_on_what_was_not_waiting_for_tensors() -> None:
    one = seat("a", credits=8)
    one.outstanding = {unit(1, "j"): replace(reserved(1), fetches=True)}
    assert one.running == (unit(1, "j"),), "nothing else can have been"
    one.outstanding |= {unit(2, "j"): reserved(2), unit(3, "k"): reserved(2), unit(4, "k"): reserved(3)}
    assert one.running == (unit(1, "j"),), "all wait for it"
    one.outstanding |= {unit(5, "l"): reserved(4), unit(6, "m"): reserved(4), unit(7, "n"): reserved(5)}
    assert one.running == (unit(5, "l"), unit(6, "m"))
    one.beat = Heartbeat(6, 0, 0, running=(unit(1, "j"),))
    assert one.running == (unit(1, "j"),), "it has said so"


def test_a_worker_of_a_role_serves_that_and_what_is_nobodys() -> None:
    fleet = Fleet(silent_s=1.0)
    fleet.join(hello("all"), 0.0)
    assert not fleet.is_split
    fleet.join(replace(hello("some"), serves=("encoder", "decoder")), 0.0)

    def serving(role: str | None) -> list[str]:
        return [one.worker for one in fleet.serving(MODEL, role=role)]

    assert fleet.is_split
    assert serving("encoder") == serving("decoder") == serving(None) == ["all", "some"]
    assert serving("denoiser") == ["all"]


def test_a_worker_has_left_what_neither_jobs_nor_steps_nor_weights_take() -> None:
    home = AtHome()
    home.add(account(resident_bytes=20, coming_bytes=8), "toy")
    one = seat("a", reserved(1, 10), memory_bytes=100)

    left = one.room(home, {"toy": 30, "other": 1000}, jumbo_s=5.0, now=0.0)

    assert (left.free_bytes, left.peak_bytes, sum(left.jobs.values()), left.in_use) == (40, 10, 1, {"toy"})
    assert room(seat("b", memory_bytes=100)).free_bytes == 100


def test_the_largest_step_to_come_is_reserved_if_no_larger_one_is_there() -> None:
    home = AtHome()
    for coming_bytes in (8, 30):
        home.add(account(coming_bytes=coming_bytes), "toy")
    one = seat("a", reserved(1, 10), memory_bytes=100)

    assert one.room(home, {"toy": 0}, jumbo_s=5.0, now=0.0).free_bytes == 70
    one.outstanding[unit(2)] = reserved(2, 40)
    assert one.room(home, {"toy": 0}, jumbo_s=5.0, now=0.0).free_bytes == 50


def test_what_a_worker_keeps_for_others_is_taken() -> None:
    one = seat("a", memory_bytes=100)
    one.hears(Heartbeat(0, 0, 0, caches={"feature": CacheUse(nbytes=20), "slab_kv": CacheUse(nbytes=5)}), 0.0)

    assert room(one).free_bytes == 80, "slabs are of jobs, and counted with them"


def test_steps_that_take_long_are_seen() -> None:
    assert room(seat("a", reserved(1, seconds=9.0))).jumbo
    assert not room(seat("a", reserved(1, seconds=1.0))).jumbo


# -- the fleet --------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(NAMES, st.integers(0, 5), st.sampled_from("xyz"), st.sampled_from(("send", "answer"))))
       .flatmap(lambda moves: st.tuples(st.just(moves), st.permutations("xyz"))))  # fmt: skip
def test_what_is_reserved_is_given_back_whatever_happens(
    history: tuple[list[tuple[str, int, str, str]], list[str]],
) -> None:
    moves, jobs = history
    batches = itertools.count()
    fleet = Fleet(silent_s=5.0)
    for name in "abcd":
        fleet.join(hello(name), now=0.0)

    for worker, number, job, move in moves:
        if move == "send":
            fleet.seats[worker].outstanding[unit(number, job)] = reserved(next(batches))
        else:
            had = unit(number, job) in fleet.seats[worker].outstanding
            assert (fleet.answered(worker, unit(number, job), 0.0) is not None) == had
        assert fleet.seats[worker].reserved_bytes == 10 * len(fleet.seats[worker].outstanding)
    for job in jobs:
        for worker in "abcd":
            fleet.dropped(worker, [one for one in fleet.seats[worker].outstanding if one.job == job])

    assert [(one.reserved_bytes, one.free_credits) for one in fleet.seats.values()] == [(0, 2)] * 4


def test_an_answer_counts_once_and_only_from_where_the_unit_is() -> None:
    fleet = Fleet(silent_s=5.0)
    for name in "ab":
        fleet.join(hello(name), now=0.0)
    fleet.seats["a"].outstanding[unit(1)] = reserved(1)

    answers = [fleet.answered(worker, unit(1), 0.0) for worker in ("b", "nobody", "a", "a")]
    assert answers == [None, None, reserved(1), None]


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


def test_a_worker_that_has_had_more_than_it_was_sent_has_had_something_else() -> None:
    """Of an engine that is gone: it would stand for one that was lost on the way."""
    fleet = Fleet(silent_s=5.0)
    fleet.join(hello("a"), 0.0)
    fleet.sending("a")

    assert not fleet.missed("a", Heartbeat(0, 0, 0, sent=0, received=1), now=1.0)
    assert fleet.missed("a", Heartbeat(0, 0, 0, sent=0, received=2), now=1.0)


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
    fleet.seats["a"].outstanding[unit(1)] = reserved(1)

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
