"""What shares have had: all of it at first, half of it after a while, and nothing is kept of what counts no more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.scheduling.shares import LEAST_S, Shares


def test_what_was_had_long_ago_counts_for_less() -> None:
    shares = Shares(half_life_s=300.0)
    shares.add("a", 8.0, 0.0)
    shares.add("a", 4.0, 300.0)

    assert shares.of("a", 300.0) == 8.0
    assert shares.of("a", 600.0) == 4.0
    assert shares.of("nobody", 600.0) == 0.0


def test_what_is_refunded_was_not_had() -> None:
    shares = Shares()
    shares.add("a", 30.0, 0.0)
    shares.add("a", -20.0, 0.0)
    assert shares.of("a", 0.0) == 10.0

    shares.add("a", -20.0, 1.0)
    assert shares.of("a", 1.0) == 0.0


def test_what_is_refunded_late_counts_for_as_little_as_what_was_charged() -> None:
    shares = Shares(half_life_s=300.0)
    shares.add("a", 200.0, 0.0)
    shares.add("a", 100.0, 300.0)
    shares.refund("a", 200.0, 0.0, 300.0)

    assert shares.of("a", 300.0) == 100.0


def test_of_ever_new_shares_only_those_are_kept_that_count() -> None:
    shares, most = Shares(half_life_s=300.0), 0
    for number in range(20_000):
        shares.add(f"share-{number}", 1.0, number * 10.0)
        most = max(most, len(shares))

    assert most <= 2 * 600  # 1 s counts for twenty half-lives, in which 600 come
    assert len([number for number in range(20_000) if shares.of(f"share-{number}", 200_000.0)]) >= 590


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.floats(0.001, 100), st.floats(0, 10_000)), max_size=60))
def test_what_is_forgotten_counts_for_nothing(had: list[tuple[str, float, float]]) -> None:
    shares, now, all_of_it = Shares(), 0.0, dict.fromkeys("abcde", 0.0)
    for share, seconds, later in had:
        now += later
        all_of_it = {one: each * 2 ** (-later / 300.0) for one, each in all_of_it.items()}
        all_of_it[share] += seconds
        shares.add(share, seconds, now)

    for share, seconds in all_of_it.items():
        assert shares.of(share, now) == pytest.approx(seconds, abs=2 * LEAST_S, rel=1e-6)
