"""What the model of a power cut takes away, and what it leaves."""

from pathlib import Path

from tests.crash.operation import Operation
from tests.crash.power import SECTOR, Disk, nothing, some

FOLDER = Path("/data")
FILE = "/data/file"

CREATE = Operation("create", FILE)
SYNC = Operation("sync", FILE)
SYNC_FOLDER = Operation("sync_folder", "/data")


def write(data: bytes, offset: int = 0) -> Operation:
    return Operation("write", FILE, data, offset)


def left_of(tmp_path: Path, *operations: Operation, seed: int | None = None) -> dict[str, bytes | None]:
    disk = Disk(tmp_path, FOLDER)
    for operation in operations:
        disk.do(operation)
    return dict(disk.lay_out(nothing if seed is None else some(seed)))


def some_of(tmp_path: Path, *operations: Operation) -> list[dict[str, bytes | None]]:
    return [left_of(tmp_path, *operations, seed=seed) for seed in range(20)]


def test_a_file_survives_once_it_and_its_folder_are_synced(tmp_path: Path) -> None:
    assert left_of(tmp_path, CREATE, write(b"data"), SYNC, SYNC_FOLDER) == {FILE: b"data"}


def test_of_a_file_that_nobody_saw_written_what_is_synced_survives_under_its_next_name(tmp_path: Path) -> None:
    synced = Operation("sync", FILE, b"all of it")
    renamed = Operation("rename", FILE, target="/data/new")

    assert left_of(tmp_path, synced, renamed, SYNC_FOLDER) == {"/data/new": b"all of it"}
    assert left_of(tmp_path, synced, renamed) == {}


def test_a_name_is_lost_with_a_folder_that_was_not_synced(tmp_path: Path) -> None:
    assert left_of(tmp_path, CREATE, write(b"data"), SYNC) == {}


def test_bytes_are_lost_with_a_file_that_was_not_synced(tmp_path: Path) -> None:
    assert left_of(tmp_path, CREATE, SYNC_FOLDER, write(b"data")) == {FILE: b""}


def test_what_was_there_before_is_there_still(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old data")

    assert left_of(tmp_path, write(b"new")) == {FILE: b"old data"}
    assert left_of(tmp_path, write(b"new"), SYNC) == {FILE: b"new data"}
    assert left_of(tmp_path, Operation("truncate", FILE, offset=3), SYNC) == {FILE: b"old"}


def test_a_later_sector_may_survive_an_earlier_one(tmp_path: Path) -> None:
    written = some_of(tmp_path, CREATE, SYNC_FOLDER, write(b"x" * (2 * SECTOR)))

    assert {FILE: bytes(SECTOR) + b"x" * SECTOR} in written
    assert {FILE: b"x" * SECTOR} in written


def test_a_renaming_is_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    renamed = some_of(
        tmp_path, CREATE, write(b"data"), SYNC, SYNC_FOLDER, Operation("rename", FILE, target="/data/new")
    )

    assert {frozenset(names) for names in renamed} == {frozenset({FILE}), frozenset({"/data/new"})}


def test_what_is_in_a_folder_is_lost_with_it(tmp_path: Path) -> None:
    inside = [Operation("folder", "/data/a"), Operation("create", "/data/a/b"), Operation("sync_folder", "/data/a")]

    assert left_of(tmp_path, *inside) == {}
    assert left_of(tmp_path, *inside, SYNC_FOLDER) == {"/data/a": None, "/data/a/b": b""}
