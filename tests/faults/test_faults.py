"""A few cells of the matrix; `make faults` plays all."""

from pathlib import Path

import pytest

from tests.faults.cells import CELLS, Cell
from tests.faults.place import ONE, RANKS, WIRED, Setup, opened
from tests.faults.run import play, undisturbed

pytestmark = pytest.mark.slow


def cell(target: str, fault: str) -> Cell:
    return next(one for one in CELLS if (one.target, one.fault) == (target, fault))


@pytest.mark.parametrize(
    ("setup", "chosen"),
    [
        (ONE, [("loaded", "worker", "no memory"), ("idle", "worker", "SIGSTOP")]),
        (RANKS, [("idle", "rank 1", "SIGSTOP")]),
        (WIRED, [("loaded", "worker", "wrong bytes"), ("loaded", "engine", "wrong bytes")]),
    ],
    ids=lambda value: value.name if isinstance(value, Setup) else "",
)
def test_a_fault_costs_what_it_must_and_no_more(
    tmp_path: Path, setup: Setup, chosen: list[tuple[str, str, str]]
) -> None:
    with opened(setup, tmp_path) as place:
        made = undisturbed(place)
        for load, target, fault in chosen:
            seen = play(place, cell(target, fault), load, made)

            assert not seen.problems, f"{seen}\n{seen.problems}"
