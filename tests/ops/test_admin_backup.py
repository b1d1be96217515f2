"""A copy of a store: what a backup holds, when one is refused, and what becomes of it."""

import shutil
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest
from msgspec.structs import replace

from engine.check import check
from engine.clock import WallClock
from engine.job import State
from ops.backup import backup
from ops.errors import OpsError
from store.blobs import MemoryBlobs, Stored, holds, open_blobs
from store.open import open_journal
from tests.ops.admin import Done, NewSettings, admin, ended, engine, world_on
from tests.sim import SimClock, digests, request

BIG = "a count big=70000"


@pytest.mark.parametrize(("source", "target"), [("sqlite", "postgres"), ("postgres", "sqlite")])
async def test_jobs_of_a_backup_go_on_in_another_database_to_the_same_bits(
    source: str, target: str, new: NewSettings, tmp_path: Path
) -> None:
    here, there = new(source, "here"), new(target, "there")
    file = tmp_path / "backup.tar"
    async with engine(here) as running:
        done = await ended(running, 1, BIG)
        worker = running.workers[0]
        worker.hold_at = len(worker.ran) + 20
        going_on = await running.client.submit(request(BIG, seed=2, steps=60))
        await running.until(lambda: worker.gate is not None)

        saved = await admin(here, "db", "backup", file, "--json")

        assert saved.code == 0, saved.err
        worker.open()
        await running.ended(going_on.id)
        expected = [digests(await running.client.checkpoints(job)) for job in (done, going_on.id)]
    restored = await admin(there, "db", "restore", file, "--json")
    assert restored.code == 0, restored.err
    assert restored.json["rows"] == saved.json["rows"]
    assert restored.json["blobs"] == saved.json["blobs"] > 8
    assert (await admin(there, "db", "check")).code == (await admin(there, "log", "verify")).code == 0

    async with engine(there) as running:
        assert (await running.ended(going_on.id)).state is State.COMPLETED
        assert [digests(await running.client.checkpoints(job)) for job in (done, going_on.id)] == expected
        ran = [unit.plan.step for unit in running.workers[0].ran]
        assert 0 < len(ran) < 60
        assert ran.count(0) <= 1  # of its last node: what was done was not done again
        for job in (done, going_on.id):
            verified = await admin(there, "replay", "verify", job)
            assert verified.code == 0, verified.out


async def test_a_backup_is_of_one_moment_while_engines_write(new: NewSettings, tmp_path: Path) -> None:
    for kind in ("sqlite", "postgres"):
        here = new(kind, f"here-{kind}")
        async with engine(here, max_active=8) as running:
            for seed in range(8):
                await running.client.submit(request(seed=seed, steps=2000))
            for n in range(3):
                await running.until(lambda n=n: running.engine.results.steps > 100 * (n + 1))
                there = new("sqlite", f"there-{kind}-{n}")
                assert (await admin(here, "db", "backup", tmp_path / f"{kind}-{n}.tar")).code == 0
                restored = await admin(there, "db", "restore", tmp_path / f"{kind}-{n}.tar")
                assert restored.code == 0, restored.err
                async with open_journal(there.store_url) as journal:
                    assert (await check(journal)).problems == ()


@pytest.fixture
async def backed_up(new: NewSettings, tmp_path: Path) -> Path:
    here = new("sqlite", "backed-up")
    async with open_journal(here.store_url) as journal, world_on(journal, here).engine() as running:
        await ended(running, 1, BIG)
    file = tmp_path / "backup.tar"
    assert (await admin(here, "db", "backup", file)).code == 0
    return file


def changed(file: Path, change: Callable[[bytes], bytes]) -> None:
    file.write_bytes(change(file.read_bytes()))


def member_damaged(prefix: str) -> Callable[[bytes], bytes]:
    """One byte of a member's data."""

    def change(data: bytes) -> bytes:
        import io

        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            at = next(member.offset_data for member in tar if member.name.startswith(prefix) and member.size > 10) + 9
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: data[:5000], "no whole backup"),
        (lambda data: data[: len(data) // 2], "no whole backup"),
        (lambda data: b"something else", "no whole backup"),
        (member_damaged("rows/"), "in it is damaged: take another backup"),
        (member_damaged("blobs/"), "in it is damaged: take another backup"),
    ],
)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_of_a_damaged_backup_nothing_is_there(
    kind: str, change: Callable[[bytes], bytes], says: str, backed_up: Path, new: NewSettings
) -> None:
    there = new(kind, "there")
    changed(backed_up, change)

    done = await admin(there, "db", "restore", backed_up)

    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert says in done.err
    async with open_journal(there.store_url) as journal:
        assert (await journal.statistics_of_store()).events == 0


async def test_an_engine_does_not_sweep_while_a_backup_is_taken(backed_up: Path, new: NewSettings) -> None:
    there = new("sqlite", "there")
    assert (await admin(there, "db", "restore", backed_up)).code == 0
    refused: list[Done] = []

    def collect(what: str, count: int) -> None:
        if count == 1:
            refused.append(anyio.from_thread.run(admin, there, "gc", "run"))

    done = await anyio.to_thread.run_sync(
        backup, there.store_url, open_blobs(there.blobs_url), there.data / "second.tar", collect, WallClock()
    )

    assert done.blobs > 0
    assert {one.code for one in refused} == {1}
    assert "a backup reads them" in refused[0].err
    assert (await admin(there, "gc", "run")).code == 0


class SlowListing(MemoryBlobs):
    """Each entry of a listing takes minutes. Says at which of them a sweep could have begun."""

    def __init__(self, clock: SimClock) -> None:
        super().__init__()
        self._clock = clock
        self.unheld: list[float] = []

    def listing(self, now: float) -> Iterator[Stored]:
        for stored in super().listing(now):
            self._clock.advance(holds.HOLD_S / 3)
            if holds.held_until(self) < self._clock.now():
                self.unheld.append(self._clock.now())
            yield stored


async def test_sweeps_are_held_off_however_long_the_blobs_take_to_list(backed_up: Path, new: NewSettings) -> None:
    there, clock = new("sqlite", "there"), SimClock()
    assert (await admin(there, "db", "restore", backed_up)).code == 0
    blobs = SlowListing(clock)
    for number in range(6):
        blobs.put(bytes([number]) * 100)

    backup(there.store_url, blobs, there.data / "second.tar", lambda what, count: None, clock)

    assert clock.now() > 1_000 + holds.HOLD_S
    assert blobs.unheld == []


@pytest.mark.parametrize("when", ["streams", "jobs", "blobs"])
async def test_a_backup_that_a_sweep_overtakes_says_so_and_leaves_nothing(
    when: str, backed_up: Path, new: NewSettings
) -> None:
    """The sweep comes after the first rows, after the last, or after the first blob."""
    there = new("sqlite", "there")
    assert (await admin(there, "db", "restore", backed_up)).code == 0
    blobs, file = open_blobs(there.blobs_url), there.data / "second.tar"

    def sweep(what: str, count: int) -> None:
        if what == when:
            open_blobs(there.blobs_url).sweep((), grace_s=0, now=time.time() + 60)

    with pytest.raises(OpsError, match=r"blob [0-9a-f]{64} was collected while .*: run it again"):
        backup(there.store_url, blobs, file, sweep, WallClock())
    assert [path.name for path in there.data.glob("*second*")] == []

    assert backup(there.store_url, blobs, file, lambda what, count: None, WallClock()).blobs == 0, (
        "what went before is not missed"
    )


async def test_a_restore_asks_for_an_empty_store_and_a_backup_for_a_new_file(backed_up: Path, new: NewSettings) -> None:
    there = new("sqlite", "there")
    assert (await admin(there, "db", "restore", backed_up)).code == 0

    again = await admin(there, "db", "restore", backed_up)
    over = await admin(there, "db", "backup", backed_up)
    nowhere = await admin(there, "db", "backup", there.data / "none" / "backup.tar")
    gone = await admin(there, "db", "restore", there.data / "none.tar")

    assert "take an empty one" in again.err
    assert "is there already: choose another name" in over.err
    assert [done.code for done in (again, over, nowhere, gone)] == [1, 2, 2, 2]
    assert {done.err.count("\n") for done in (again, over, nowhere, gone)} == {1}
    async with engine(there):
        assert "holds" in (await admin(there, "db", "restore", backed_up)).err


async def test_a_backup_may_leave_the_blobs_where_they_are(backed_up: Path, new: NewSettings) -> None:
    full, there = new("sqlite", "full"), new("sqlite", "there")
    assert (await admin(full, "db", "restore", backed_up)).code == 0
    lean = backed_up.with_name("lean.tar")

    done = await admin(full, "db", "backup", lean, "--without-blobs", "--json")
    assert done.json["blobs"] == 0
    assert lean.stat().st_size < backed_up.stat().st_size / 2
    shutil.copytree(full.data / "blobs", there.data / "blobs")
    assert (await admin(there, "db", "restore", lean)).code == 0

    verified = await admin(there, "replay", "verify", "--all", "--json")
    assert [one["equal"] for one in verified.json] == [True]
    assert verified.json[0]["verdict"]["pruned"] == 0


async def test_a_store_restored_beside_the_blobs_of_another_is_not_swept_until_it_is_said_that_that_one_is_gone(
    backed_up: Path, new: NewSettings
) -> None:
    here = new("sqlite", "here")
    assert (await admin(here, "db", "restore", backed_up)).code == 0
    there = replace(new("sqlite", "there"), blobs=here.blobs_url)
    assert (await admin(there, "db", "restore", backed_up)).code == 0

    for settings in (here, there):
        for words in (("gc", "plan"), ("gc", "run")):
            refused = await admin(settings, *words)
            assert (refused.code, refused.err.count("\n")) == (1, 1)
            assert "engine-admin gc run --take-over" in refused.err
    assert (await admin(there, "gc", "run", "--take-over")).code == 0

    assert (await admin(there, "gc", "run")).code == 0
    assert (await admin(there, "replay", "verify", "--all")).code == 0


async def test_a_blob_that_was_damaged_on_disk_stops_a_backup(backed_up: Path, new: NewSettings) -> None:
    there = new("sqlite", "there")
    assert (await admin(there, "db", "restore", backed_up)).code == 0
    pack = max((there.data / "blobs").rglob("*"), key=lambda path: path.stat().st_size * path.is_file())
    data = bytearray(pack.read_bytes())
    data[data.index(b"\x01" * 9000)] ^= 1  # in the middle of what the second step made
    pack.write_bytes(data)
    file = there.data / "second.tar"

    done = await admin(there, "db", "backup", file)

    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "is corrupt" in done.err
    assert [path.name for path in there.data.glob("*second*")] == []
