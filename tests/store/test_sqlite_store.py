"""One SQLite file: held by one engine, whole after a kill, and usable again after a full disk."""

import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import anyio
import pytest

from store.database import Durability
from store.errors import NoIdentity, StoreLocked, StoreUnavailable
from store.journal import Append, Journal, NewEvent
from store.open import database_at, open_journal
from store.sql import SqlJournal
from store.sqlite import Sqlite
from tests.store.appender import STREAM, step
from tests.store.disks import fill, make_read_only, no_file_may_grow

ROOT = Path(__file__).parents[2]


def url(folder: Path) -> str:
    return f"sqlite:///{folder}/store.db"


def large(expected: int, nbytes: int) -> Append:
    return Append(stream="large", expected=expected, epoch=0, at=0.0, events=(NewEvent("large", bytes(nbytes)),))


@contextmanager
def appender(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the store and appends, from its first acknowledged append until it is killed."""
    command = [sys.executable, "-m", "tests.store.appender", url(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline(), "it did not start"
            yield process
        finally:
            process.kill()


# One engine


async def test_a_second_engine_is_refused_until_the_first_is_dead(tmp_path: Path) -> None:
    with appender(tmp_path) as process:
        with pytest.raises(StoreLocked, match=rf"pid {process.pid} holds .*store\.db: stop it first"):
            async with open_journal(url(tmp_path)):
                pass

        process.send_signal(signal.SIGKILL)
        process.wait()

        async with open_journal(url(tmp_path)) as journal:
            assert await journal.load(STREAM)


async def test_a_reader_looks_on_beside_a_live_engine_and_writes_nothing(tmp_path: Path) -> None:
    async with open_journal(url(tmp_path)) as journal, open_journal(url(tmp_path), writable=False) as reader:
        await journal.append(step(0))

        assert await reader.load(STREAM) == await journal.load(STREAM)
        with pytest.raises(StoreUnavailable, match="not open for writing"):
            await reader.append(step(1))
        with pytest.raises(StoreUnavailable, match="not open for writing"):
            await reader.replace_rows([])


async def test_a_closed_journal_takes_nothing_and_has_written_all(tmp_path: Path) -> None:
    async with open_journal(url(tmp_path)) as journal:
        pending = [journal.append(step(version)) for version in range(50)]

    assert [(await answer).version for answer in pending] == list(range(1, 51))
    with pytest.raises(StoreUnavailable, match="not open for writing"):
        await journal.append(step(50))
    async with open_journal(url(tmp_path), writable=False) as reader:
        loaded = await reader.load(STREAM)
    assert loaded is not None
    assert loaded.version == 50


async def test_a_cancelled_owner_leaves_no_thread_behind(tmp_path: Path) -> None:
    before = threads()

    with anyio.CancelScope() as scope:
        async with open_journal(url(tmp_path)) as journal:
            await read_at_once(journal)
            assert threads() - before  # those of tests before this one may end meanwhile
            scope.cancel()
            await anyio.sleep_forever()

    assert not threads() - before


async def read_at_once(journal: Journal) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(journal.load, STREAM)


def threads() -> set[threading.Thread]:
    """Those of others than anyio, which keeps its own for the next call."""
    return {thread for thread in threading.enumerate() if thread.name != "AnyIO worker thread"}


# Crashes


@pytest.mark.parametrize("acknowledged", [1, 2, 11, 57, 200])
async def test_after_kill_9_all_that_was_acknowledged_is_there(tmp_path: Path, acknowledged: int) -> None:
    with appender(tmp_path) as process:
        assert process.stdout is not None
        for _ in range(acknowledged):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        told = [int(line) for line in process.stdout.read().split()]  # what it said before it died
    last_told = max([acknowledged + 1, *told])

    async with open_journal(url(tmp_path)) as journal:
        loaded = await journal.load(STREAM)
        events = await journal.read(STREAM, limit=100_000)
        assert loaded is not None
        assert loaded.version >= last_told
        assert loaded.checkpoint is not None
        assert loaded.checkpoint.version == loaded.version
        assert [event.version for event in events] == list(range(1, loaded.version + 1))
        assert [event.body for event in events] == [b"%d" % event.version for event in events]
        assert (await journal.append(step(loaded.version))).version == loaded.version + 1


# Trouble with the disk


async def test_a_full_disk_refuses_appends_until_there_is_room(small_disk: Path) -> None:
    async with open_journal(url(small_disk)) as journal:
        await journal.append(large(0, 10))
        fill(small_disk / "filler")

        pending = [journal.append(large(1, 100_000)), journal.append(large(2, 10)), journal.append(step(0))]
        for answer in pending:
            with pytest.raises(StoreUnavailable, match="full"):
                await answer
        (small_disk / "filler").unlink()

        assert (await journal.append(large(1, 100_000))).version == 2
        assert (await journal.append(step(0))).position == 3
        assert [len(event.body) for event in await journal.read("large")] == [10, 100_000]


async def test_a_full_disk_is_no_place_for_a_new_store(small_disk: Path) -> None:
    fill(small_disk / "filler")

    with pytest.raises(StoreUnavailable, match=r"full|unable to open|I/O"):
        async with open_journal(url(small_disk)):
            pass


async def test_a_log_that_may_not_grow_refuses_appends_until_it_may(tmp_path: Path) -> None:
    async with open_journal(url(tmp_path)) as journal:
        await journal.append(large(0, 10))

        with no_file_may_grow(beyond=tmp_path / "store.db-wal"), pytest.raises(StoreUnavailable):
            await journal.append(large(1, 100_000))

        assert (await journal.append(large(1, 100_000))).version == 2
        assert [len(event.body) for event in await journal.read("large")] == [10, 100_000]


async def test_a_read_only_disk_is_refused_in_one_line(small_disk: Path) -> None:
    async with open_journal(url(small_disk)) as journal:
        await journal.append(step(0))
    make_read_only(small_disk)

    with pytest.raises(StoreUnavailable, match=r"store\.db: Read-only file system"):
        async with open_journal(url(small_disk)):
            pass


async def test_a_file_that_is_no_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"holiday pictures" * 100)

    with pytest.raises(StoreUnavailable, match="not a database"):
        async with open_journal(url(tmp_path)):
            pass

    assert (tmp_path / "store.db").read_bytes() == b"holiday pictures" * 100


# The group


async def test_many_callers_share_a_commit(tmp_path: Path) -> None:
    async with open_journal(url(tmp_path)) as journal:
        async with anyio.create_task_group() as tasks:
            for caller in range(16):
                tasks.start_soon(append_many, journal, f"s{caller}", 40)

        assert isinstance(journal, SqlJournal)
        statistics = journal.statistics()
        assert statistics.appends == 16 * 40
        assert statistics.groups <= statistics.appends / 4
        assert statistics.queued == 0


async def append_many(journal: Journal, stream: str, count: int) -> None:
    for version in range(count):
        await journal.append(Append(stream=stream, expected=version, epoch=0, at=0.0, events=(NewEvent("step", b"x"),)))


async def test_the_write_ahead_log_stays_small_beside_readers(tmp_path: Path) -> None:
    async with open_journal(url(tmp_path)) as journal, open_journal(url(tmp_path), writable=False) as reader:
        for version in range(100):
            await journal.append(large(version, 200_000))
            assert len(await reader.read_all(after=version)) == 1

        assert (tmp_path / "store.db-wal").stat().st_size < 8 * 1024 * 1024


# The file


def test_a_commit_is_a_sync_and_only_the_writer_moves_the_log(tmp_path: Path) -> None:
    connection = Sqlite(tmp_path / "store.db").connect()
    try:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "wal_autocheckpoint")
        }
    finally:
        connection.close()

    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "wal_autocheckpoint": 0}


@pytest.mark.parametrize("way_in", ["link", "removed note"])
async def test_no_way_leads_two_engines_into_one_store(tmp_path: Path, way_in: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    async with open_journal(url(tmp_path)) as journal:
        await journal.append(step(0))
        if way_in == "removed note":
            (tmp_path / "store.db.lock").unlink()

        with pytest.raises(StoreLocked):
            async with open_journal(url(tmp_path / "link" if way_in == "link" else tmp_path)):
                pass


async def test_a_full_queue_is_said_at_once_and_what_was_taken_is_written(tmp_path: Path) -> None:
    async with open_journal(f"sqlite:///{tmp_path}/store.db", queue_appends=20) as journal:
        blocker = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")  # a disk that takes nothing for a while
        taken = [journal.append(step(number)) for number in range(20)]
        refused = journal.append(step(20))

        with pytest.raises(StoreUnavailable, match="20 appends wait for the disk already"):
            await refused
        blocker.execute("ROLLBACK")
        blocker.close()

        assert [(await append).version for append in taken] == list(range(1, 21))
        assert (await journal.append(step(20))).version == 21


async def test_a_store_that_has_lost_its_identity_says_what_to_do(tmp_path: Path) -> None:
    async with open_journal(url(tmp_path)) as journal:
        with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as other:
            other.execute("DELETE FROM identity")

        with pytest.raises(NoIdentity, match="db restore` that into an empty store"):
            await journal.identity()


@pytest.mark.parametrize(("durability", "level"), [("power", 2), ("process", 0)])
def test_a_weaker_durability_is_had_by_its_name_alone(tmp_path: Path, durability: Durability, level: int) -> None:
    with database_at(url(tmp_path), durability).connect() as writer:
        assert writer.exec_driver_sql("PRAGMA synchronous").scalar() == level
