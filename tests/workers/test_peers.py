"""The mailboxes of ranks, over real sockets: a round ends with all of them, or names who is not in it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from workers.errors import ExchangeBroken
from workers.peers import Peers, joined

PATIENCE_S = 30.0


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Callable[..., list[Peers]]]:
    """So many, in command 1."""
    with ExitStack() as stack:

        def join(count: int, timeout_s: float = PATIENCE_S) -> list[Peers]:
            made = [stack.enter_context(joined(tmp_path, rank, count, timeout_s)) for rank in range(count)]
            for one in made:
                one.begin(1)
            return made

        yield join


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """What each returns or raises, each on a thread."""
    made: list[Any] = [None] * len(calls)

    def run(index: int, call: Callable[[], Any]) -> None:
        try:
            made[index] = call()
        except ExchangeBroken as error:
            made[index] = error

    threads = [threading.Thread(target=run, args=one, daemon=True) for one in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    return made


def test_all_of_a_round_hear_all_in_order(ranks: Callable[..., list[Peers]]) -> None:
    there = ranks(3)
    everyone = (0, 1, 2)

    def twice(one: Peers) -> list[list[bytes]]:
        return [one.round(everyone, b"%d.%d" % (one.rank, number)) for number in (1, 2)]

    heard = at_once(*(lambda one=one: twice(one) for one in there))

    assert heard == [[[b"0.1", b"1.1", b"2.1"], [b"0.2", b"1.2", b"2.2"]]] * 3


def test_rounds_among_some_are_no_business_of_the_others(ranks: Callable[..., list[Peers]]) -> None:
    there = ranks(4)

    def both(one: Peers, some: tuple[int, ...]) -> list[list[bytes]]:
        return [one.round(some, b"%d" % one.rank), one.round((0, 1, 2, 3), b"x")]

    heard = at_once(*(lambda one=one: both(one, (0, 1) if one.rank < 2 else (2, 3)) for one in there))

    assert [one[0] for one in heard] == [[b"0", b"1"]] * 2 + [[b"2", b"3"]] * 2


def test_the_ranks_that_say_nothing_are_named(ranks: Callable[..., list[Peers]]) -> None:
    there = ranks(4, timeout_s=0.2)

    heard = at_once(*(lambda one=one: one.round((0, 1, 2, 3), b"") for one in there[:2]))

    assert [one.ranks for one in heard] == [[2, 3]] * 2
    assert str(heard[0]) == "ranks 2, 3 have said nothing of command 1 for 0.2 s"


def test_a_rank_that_has_ended_the_command_by_itself_is_not_waited_for(ranks: Callable[..., list[Peers]]) -> None:
    there = ranks(2)
    there[1].end("failed with BadLora: it does not fit")

    with pytest.raises(ExchangeBroken, match="rank 1 has ended command 1 by itself: failed with BadLora"):
        there[0].round((0, 1), b"")


def test_what_a_rank_said_before_it_ended_counts(ranks: Callable[..., list[Peers]]) -> None:
    there = ranks(2)
    alone = threading.Thread(target=lambda: (there[1].round((0, 1), b"made"), there[1].end("made it")))
    alone.start()

    assert there[0].round((0, 1), b"") == [b"", b"made"]
    alone.join(PATIENCE_S)


def test_words_of_an_earlier_command_are_not_heard_in_a_later_one(ranks: Callable[..., list[Peers]]) -> None:
    there = ranks(2)
    there[1].end("failed")
    for one in there:
        one.begin(2)

    assert at_once(*(lambda one=one: one.round((0, 1), b"%d" % one.rank) for one in there)) == [[b"0", b"1"]] * 2


def test_a_rank_that_is_ahead_is_heard_when_the_others_are_there(ranks: Callable[..., list[Peers]]) -> None:
    """Nobody waits for all to have obeyed a release."""
    here, there = ranks(2)
    there.begin(3)
    ahead = threading.Thread(target=there.round, args=((0, 1), b"ahead"))
    ahead.start()
    here.begin(2)
    assert here.missing([1], within_s=0.3) == [1]  # which takes in what has come
    here.begin(3)

    assert here.round((0, 1), b"") == [b"", b"ahead"]
    ahead.join(PATIENCE_S)


def test_of_ranks_that_lost_another_only_that_one_is_missing(ranks: Callable[..., list[Peers]]) -> None:
    there = ranks(3)
    there[1].end("it has lost another rank")

    assert there[0].missing([1, 2], within_s=0.1) == [2]


def test_words_that_nobody_waited_for_do_not_pile_up(ranks: Callable[..., list[Peers]]) -> None:
    """Sockets let a sender wait once they hold some thousand."""
    here, there = ranks(2)

    def many_commands() -> None:
        for command in range(2, 5000):
            there.begin(command)
            there.end("made it")
            here.begin(command)

    at_once(many_commands)

    for one in (here, there):
        one.begin(5000)
    assert (
        at_once(*(lambda one=one: one.round((0, 1), b"%d" % one.rank) for one in (here, there))) == [[b"0", b"1"]] * 2
    )
