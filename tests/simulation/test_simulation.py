"""Many small worlds in which everything goes wrong, and in which nothing may be lost, doubled or made up."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import get_args

import pytest

from cards.family import Family
from engine.events import JobEvent
from tests import splitting, toy
from tests.folded import Folded
from tests.simulation.seeds import KEPT, Kept
from tests.simulation.world import Parts, Report, simulate

BLOCK = 50


def ran(
    *seeds: int,
    engines: int = 1,
    family: Family = toy.FAMILY,
    split: bool = False,
    show: Callable[[str], None] | None = None,
) -> list[Report]:
    parts = Parts(family=family, split=split)
    reports = [simulate(seed, engines=engines, parts=parts, show=show) for seed in seeds]
    failed = [(report.again, *report.problems) for report in reports if report.problems]
    assert not failed
    return reports


@pytest.mark.parametrize("first", range(0, 250, BLOCK))
def test_no_seed_finds_anything(first: int) -> None:
    ran(*range(first, first + BLOCK))


def test_no_seed_finds_anything_where_two_engines_share_a_store() -> None:
    ran(*range(BLOCK // 2), engines=2)


def test_no_seed_finds_anything_where_states_are_folds() -> None:
    ran(*range(BLOCK), family=Folded(snapshot_every=3))


def test_no_seed_finds_anything_where_jobs_go_from_worker_to_worker() -> None:
    told: list[str] = []
    ran(*range(BLOCK // 4), family=splitting.SHORT, split=True, show=told.append)
    ran(*range(BLOCK // 10), family=splitting.SHORT, split=True, engines=2)

    assert len([line for line in told if "fetches" in line and "fetches 0" not in line]) > BLOCK // 10


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: f"{kept.seed}-{kept.engines}")
def test_a_seed_that_once_found_something_finds_it_no_more(kept: Kept) -> None:
    ran(kept.seed, engines=kept.engines)


def test_the_seeds_see_everything_that_can_happen_to_a_job_but_what_operators_do() -> None:
    seen = {kind for report in ran(*range(1000, 1030)) for kind in report.kinds}
    events = {str(kind.__struct_config__.tag) for kind in get_args(JobEvent)}

    assert events - seen == {
        "job_forked", "job_imported", "job_migrated", "job_moved_away", "job_quarantined", "job_retried", "job_rewound",
        "job_terminated", "quarantine_lifted", "request_changed", "step_pinned", "step_unpinned",
    }  # fmt: skip


def test_a_seed_is_the_same_world_again_also_in_another_process_with_another_hash() -> None:
    here = [simulate(seed, engines=2).digest for seed in range(3)]
    program = "from tests.simulation.world import simulate; print(*[simulate(n, engines=2).digest for n in range(3)])"
    there = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONHASHSEED": "123", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=True,
    )

    assert [simulate(seed, engines=2).digest for seed in range(3)] == here == there.stdout.split()
    assert len(set(here)) == 3


def test_a_simulation_starts_no_thread() -> None:
    before = threading.active_count()
    ran(0)

    assert threading.active_count() == before
