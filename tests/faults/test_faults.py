"""A few cells of the matrix; `make faults` plays all."""

from pathlib import Path

import pytest

from tests.faults.cells import CELLS
from tests.faults.place import ONE, RANKS, WIRED, Setup, opened
from tests.faults.run import play, undisturbed

pytestmark = pytest.mark.slow


def test_no_memory_fails_one_job_and_a_killed_worker_none_and_readiness_says_so_in_time(tmp_path: Path) -> None:
    plays(ONE, tmp_path, ("loaded", "worker", "no memory"), ("loaded", "worker", "SIGKILL"))


def test_a_rank_that_freezes_while_it_has_nothing_to_do_is_noticed_and_replaced(tmp_path: Path) -> None:
    plays(RANKS, tmp_path, ("idle", "rank 1", "SIGSTOP"))


def test_bytes_that_are_damaged_on_the_way_to_either_end_cost_no_job_a_bit(tmp_path: Path) -> None:
    plays(WIRED, tmp_path, ("loaded", "worker", "wrong bytes"), ("loaded", "engine", "wrong bytes"))


def plays(setup: Setup, folder: Path, *chosen: tuple[str, str, str]) -> None:
    cells = {(cell.target, cell.fault): cell for cell in CELLS}
    with opened(setup, folder) as place:
        made = undisturbed(place)
        for load, target, fault in chosen:
            seen = play(place, cells[target, fault], load, made)

            assert not seen.problems, f"{seen}\n{seen.problems}"
