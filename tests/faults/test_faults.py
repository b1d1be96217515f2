"""A few cells of the matrix; `make faults` plays all."""

from pathlib import Path

import pytest

from tests.faults.cells import CELLS
from tests.faults.place import ONE, RANKS, WIRED, Setup, opened
from tests.faults.run import play, undisturbed

pytestmark = pytest.mark.slow


def test_readiness_says_in_time_that_the_worker_was_killed_and_that_there_is_another(tmp_path: Path) -> None:
    plays(tmp_path, ONE, "idle", "worker", "SIGKILL")


def test_a_rank_that_freezes_while_it_has_nothing_to_do_is_noticed_and_replaced(tmp_path: Path) -> None:
    plays(tmp_path, RANKS, "idle", "rank 1", "SIGSTOP")


def test_a_job_whose_step_makes_a_nan_fails_of_that_and_its_worker_goes_on(tmp_path: Path) -> None:
    plays(tmp_path, ONE, "loaded", "worker", "NaN")


def test_bytes_that_are_damaged_on_their_way_cost_no_job_a_bit(tmp_path: Path) -> None:
    plays(tmp_path, WIRED, "idle", "engine", "wrong bytes")


def plays(folder: Path, setup: Setup, load: str, target: str, fault: str) -> None:
    [cell] = [cell for cell in CELLS if (cell.setup, cell.target, cell.fault) == (setup, target, fault)]
    with opened(setup, folder) as place:
        seen = play(place, cell, load, undisturbed(place, load))

        assert not seen.problems, f"{seen}\n{seen.problems}"
