"""A rank's sign of life, over a real pipe."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from workers import pulse


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    try:
        yield read, write
    finally:
        os.close(read)


def test_a_rank_that_stops_giving_signs_is_named_with_the_time() -> None:
    with pipe() as (read, write):
        os.write(write, b".")

        assert pulse.watch(read, 0.02) == "has given no sign of life for 0.1 s"
        os.close(write)


def test_a_rank_that_has_ended_is_no_silent_one() -> None:
    with pipe() as (read, write):
        os.write(write, b".")
        os.close(write)

        assert pulse.watch(read, 3600) == ""


def test_a_rank_that_loads_is_waited_for_and_one_that_beats_is_not_given_up() -> None:
    read, write = os.pipe()  # left open: its threads go on
    watching = threading.Thread(target=pulse.watch, args=(read, 1.0), daemon=True)
    watching.start()
    watching.join(0.3)
    assert watching.is_alive()

    pulse.beat(write, 0.02)
    watching.join(0.3)
    assert watching.is_alive()


def test_a_rank_ends_its_signs_quietly_when_nobody_reads_them_any_more() -> None:
    others = {*threading.enumerate()}
    with pipe() as (read, write):
        pulse.beat(write, 0.01)
        assert os.read(read, 1) == b"."
        [beating] = {*threading.enumerate()} - others
    beating.join(30)

    assert not beating.is_alive()
    os.close(write)
