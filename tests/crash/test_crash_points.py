"""A process is killed at every point of what it does to a store, and the store is whole afterwards.

`make test` takes an even sample of the points and `make crash` every one; docs/decisions/0007-crash-points.md says what
is killed and what is checked. That the checks can fail is a test too: a store that acknowledges before the commit, that
commits a head before its events, that does not sync, or that names a blob before its bytes are on disk is found out.

The points are gone through by a process of their own, because a test's has threads and these do not survive a fork.
"""

import subprocess
import sys
from collections.abc import Callable, Collection

import pytest

from tests.crash.broken import BREAKS
from tests.crash.scenarios import ON_FILES, ON_POSTGRES, WORK_ON_FILES, WORK_ON_POSTGRES
from tests.crash.watch_sqlite import Unsupported, sqlite_library

SAMPLE = 7
"""Kills and power cuts of each scenario, spread evenly; `make crash` tries all."""

SAMPLE_OF_WORK = 3
"""The same of the scenarios that run an engine, which take longer. On files `make crash` alone tries most of them."""

SAMPLE_OF_BROKEN = 12

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _sqlite_is_a_library() -> None:
    try:
        sqlite_library()
    except Unsupported:
        pytest.skip("this Python has SQLite built in, so what it writes cannot be watched")


def enumerate_points(scenarios: Collection[str], sample: int, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tests.crash", *scenarios, "--at-most", str(sample), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("scenario", [*sorted(ON_FILES.keys() - WORK_ON_FILES.keys()), "a job"])
def test_a_store_is_whole_after_a_crash_at_any_point(scenario: str) -> None:
    assert_clean(enumerate_points([scenario], SAMPLE))


@pytest.fixture(scope="module")
def server(new_database: Callable[[], str]) -> str:
    return new_database()


@pytest.mark.parametrize("scenario", sorted(ON_POSTGRES.keys() - WORK_ON_POSTGRES.keys()))
def test_a_database_is_whole_after_a_crash_at_any_statement(scenario: str, server: str) -> None:
    assert_clean(enumerate_points([scenario], SAMPLE, "--server", server))


def test_what_is_done_to_jobs_can_be_done_again_after_a_crash_at_any_statement(server: str) -> None:
    assert_clean(enumerate_points(WORK_ON_POSTGRES, SAMPLE_OF_WORK, "--server", server))


def assert_clean(report: "subprocess.CompletedProcess[str]") -> None:
    assert report.returncode == 0, report.stdout + report.stderr
    assert report.stdout.endswith("points, all clean\n")


@pytest.mark.parametrize("how", BREAKS)
def test_a_store_that_is_broken_on_purpose_is_found_out(how: str) -> None:
    report = enumerate_points(["large blobs" if "blobs" in how else "appends"], SAMPLE_OF_BROKEN, "--broken", how)

    assert report.returncode == 1, report.stderr
    assert report.stdout.endswith(" unclean\n")
