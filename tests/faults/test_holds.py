"""What is looked at after a cell can be seen to be too much."""

import os
from contextlib import ExitStack
from pathlib import Path

import psutil
from msgspec.structs import replace

from tests.faults.holds import ENOUGH_BYTES, ENOUGH_FILES, Held, Holds, seen

KIND = "keyframe-ranks"


def test_what_processes_have_more_of_is_named(tmp_path: Path) -> None:
    processes = {"engine": psutil.Process(), "rank 1": psutil.Process(os.getppid())}
    before = seen(processes, tmp_path)
    with ExitStack() as stack:
        for _ in range(ENOUGH_FILES + 1):
            stack.enter_context(open(os.devnull))
        now = seen(processes, tmp_path)

    files = before.processes["engine"].files
    assert [*now.more_than(before)] == [f"the engine has {files + ENOUGH_FILES + 1} open files and had {files}"]
    assert not [*seen(processes, tmp_path).more_than(before)]

    grown = {"engine": Held(1, 5 << 20), "rank 1": Held(1, ENOUGH_BYTES + (6 << 20))}
    less = replace(before, processes={place: Held(1, 5 << 20) for place in processes})
    assert [*replace(before, processes=grown).more_than(less)] == ["the rank 1 holds 70 MiB and held 5"]


def test_what_lies_about_is_counted_by_kind_since_each_process_has_its_own_name(tmp_path: Path) -> None:
    def lying() -> Holds:
        return seen({}, tmp_path)

    (tmp_path / f"{KIND}-abc").mkdir()
    before = lying()
    (tmp_path / f"{KIND}-abc").rmdir()
    (tmp_path / f"{KIND}-def").mkdir()
    assert not [*lying().more_than(before)]

    (tmp_path / f"{KIND}-ghi").mkdir()
    assert [*lying().more_than(before)] == [f"1 more of {tmp_path / KIND} than before"]
