"""What an operator does with a store: its log, its leases, its schema, a copy of it, a question to it."""

import json
import shutil
import sqlite3
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import msgspec
import pytest
from msgspec.structs import replace
from sqlalchemy import NullPool, create_engine

from engine.check import check
from engine.clock import WallClock
from engine.job import State
from ops.backup import backup
from ops.errors import OpsError
from ops.settings import Settings
from store.blobs import MemoryBlobs, Stored, holds, open_blobs
from store.journal import Event
from store.open import open_journal
from tests.ops.admin import Done, admin, engine, settings_of, world_on
from tests.sim import Running, SimClock, digests, request

NewSettings = Callable[[str, str], Settings]

BIG = "a count big=70000"


@pytest.fixture
def new(request: pytest.FixtureRequest, tmp_path: Path) -> NewSettings:
    """Settings of a new folder and a new store of a kind."""

    def new(kind: str, folder: str) -> Settings:
        (tmp_path / folder).mkdir()
        if kind == "sqlite":
            return settings_of(tmp_path / folder)
        new_database: Callable[[], str] = request.getfixturevalue("new_database")
        return settings_of(tmp_path / folder, new_database())

    return new


@pytest.fixture(params=["sqlite", "postgres"])
def settings(request: pytest.FixtureRequest, new: NewSettings) -> Settings:
    return new(request.param, "store")


def execute(settings: Settings, sql: str) -> int:
    url = settings.store_url.replace("postgresql://", "postgresql+psycopg://")
    with create_engine(url, poolclass=NullPool).begin() as connection:
        return connection.exec_driver_sql(sql).rowcount


async def ended(running: Running, seed: int = 7, prompt: str = "a count", **fields: Any) -> str:
    return (await running.ended((await running.client.submit(request(prompt, seed=seed, **fields))).id)).id


# -- log ----------------------------------------------------------------------------------------------------------


async def test_the_newest_events_are_shown_or_those_after_a_position(settings: Settings) -> None:
    async with engine(settings) as running:
        first, second = await ended(running, 1), await ended(running, 2)
        log = await running.world.journal.read_all()

        async def positions(*flags: object) -> list[int]:
            done = await admin(settings, "log", "tail", "--json", *flags)
            assert done.code == 0, done.err
            return [json.loads(line)["position"] for line in done.out.splitlines()]

        assert await positions("-n", 3) == [event.position for event in log[-3:]]
        assert await positions("-n", 10_000) == [event.position for event in log]
        assert await positions("--after", log[4].position) == [event.position for event in log[5:]]
        of_first = [event.position for event in log if event.stream == f"job/{first}"]
        assert await positions("--stream", f"job/{first}", "-n", 2) == of_first[-2:]

        await running.client.purge(second)  # now the newest positions are a hole
        assert await positions("-n", 3) == of_first[-3:]


async def test_the_tail_follows_what_is_written(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    async with engine(settings) as running, anyio.create_task_group() as tasks:
        from ops.admin.main import parser

        arguments = parser().parse_args(["log", "tail", "-f", "--json"])
        tasks.start_soon(arguments.run, arguments, settings)
        job = await ended(running)

        with anyio.fail_after(30):
            seen = ""
            while "job_completed" not in seen:
                await anyio.sleep(0.01)
                seen += capsys.readouterr().out
        tasks.cancel_scope.cancel()
    versions = [json.loads(line)["version"] for line in seen.splitlines() if job in line]
    assert versions == list(range(1, len(versions) + 1))


async def test_what_is_exported_can_be_read_back(settings: Settings, tmp_path: Path) -> None:
    async with engine(settings) as running:
        await ended(running)
        log = await running.world.journal.read_all()

    shown = await admin(settings, "log", "export")
    written = await admin(settings, "log", "export", "-o", tmp_path / "log.jsonl")
    nowhere = await admin(settings, "log", "export", "-o", tmp_path / "nowhere" / "log.jsonl")

    assert [msgspec.json.decode(line, type=Event) for line in shown.out.splitlines()] == log
    assert (tmp_path / "log.jsonl").read_text() == shown.out
    assert (written.out, written.err) == ("", f"{len(log)} events\n")
    assert (nowhere.code, nowhere.err.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("UPDATE events SET at = at + 1 WHERE {second} AND version = 3", "event 3 (node_started) is not what was"),
        ("DELETE FROM events WHERE {second} AND version = 2", "event 2 is missing or out of order: 3 stands"),
        ("DELETE FROM events WHERE {second} AND version > 5", "ends at event 5, its head says"),
        ("DELETE FROM events WHERE {second}", "ends at event 0, its head says"),
        ("DELETE FROM streams WHERE {second}", "has no head"),
        ("UPDATE streams SET version = version + 1 WHERE {second}", "its head says"),
        ("UPDATE events SET stream = 'job/other' WHERE {second} AND version > 7", "ends at event 7, its head says"),
    ],
)
async def test_a_chain_that_is_broken_is_named_with_the_place(settings: Settings, damage: str, says: str) -> None:
    async with engine(settings) as running:
        first, second = await ended(running, 1), await ended(running, 2)
    sound = await admin(settings, "log", "verify", "--json")
    assert (sound.code, sound.json["streams"], sound.json["broken"]) == (0, 2, {})

    assert execute(settings, damage.format(second=f"stream = 'job/{second}'"))

    broken = await admin(settings, "log", "verify", "--json")
    assert broken.code == 1
    assert says in broken.json["broken"].pop(f"job/{second}")
    assert set(broken.json["broken"]) <= {f"job/{second}", "job/other"}
    assert says in (await admin(settings, "log", "verify", second)).out
    assert (await admin(settings, "log", "verify", first)).code == 0
    assert (await admin(settings, "log", "verify", "nope")).err == "error: no job 'nope'\n"


async def test_what_an_engine_writes_meanwhile_breaks_no_chain(settings: Settings) -> None:
    async with engine(settings, max_active=8) as running:
        for seed in range(8):
            await running.client.submit(request(seed=seed, steps=500))
        for _ in range(5):
            done = await admin(settings, "log", "verify")
            assert done.code == 0, done.out


# -- leases -------------------------------------------------------------------------------------------------------


async def test_leases_are_listed_with_what_they_hold_and_can_be_broken(new: NewSettings) -> None:
    shared = new("postgres", "shared")
    async with engine(shared, name="one") as running:
        running.workers[0].gate = anyio.Event()
        job = await running.client.submit(request())
        await running.until(lambda: job.id in running.engine.ledger.actors)
        await running.engine.ledger.settled()

        [lease] = (await admin(shared, "leases", "list", "--json")).json
        assert (lease["engine"], lease["url"], lease["jobs"]) == ("one", running.engine.settings.url, 1)
        assert lease["live"]
        assert 0 < lease["left_s"] <= 10
        running.workers[0].gate.set()

    assert (await admin(shared, "leases", "break", "one")).out.split()[-1] == "ended"
    wrong = await admin(shared, "leases", "break", "one")
    assert (wrong.code, wrong.err) == (1, "error: engine: 'one' has no lease; there are: none\n")


async def test_a_file_has_no_leases_and_that_is_said(new: NewSettings) -> None:
    alone = new("sqlite", "alone")
    async with engine(alone):
        listed = await admin(alone, "leases", "list", "--json")
        broken = await admin(alone, "leases", "break", "engine")

    assert (listed.json, broken.code) == ([], 1)
    assert listed.err.startswith("a SQLite store has no leases")
    assert broken.err.startswith("error: engine: a SQLite store has no leases")


# -- schema -------------------------------------------------------------------------------------------------------


async def test_an_upgrade_makes_the_job_list_anew(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parent.parent / "histories" / "schema-0001.db", tmp_path / "keyframe.db")
    old = settings_of(tmp_path)
    refused = await admin(old, "jobs", "list")
    assert refused.err.count("engine-admin db upgrade") == 1

    done = (await admin(old, "db", "upgrade", "--json")).json

    assert done["job_list_rebuilt"]
    assert (await admin(old, "db", "check", "--json")).json["problems"] == []
    again = (await admin(old, "db", "upgrade", "--json")).json
    assert (again["revision"], again["job_list_rebuilt"]) == (done["revision"], False)


async def test_a_damaged_list_is_mended_unless_an_engine_is_at_work(settings: Settings) -> None:
    async with engine(settings) as running:
        job = await ended(running)
    execute(settings, "DELETE FROM jobs")

    found = await admin(settings, "db", "check", "--json")

    assert (found.code, found.json["job_list_rebuilt"]) == (1, True)
    assert (await admin(settings, "db", "check")).code == 0
    assert [row["id"] for row in (await admin(settings, "jobs", "list", "--json")).json] == [job]


async def test_a_store_says_how_much_is_in_it(settings: Settings) -> None:
    async with engine(settings) as running:
        await ended(running)
        stats = (await admin(settings, "db", "stats", "--json")).json

    assert (stats["streams"], stats["jobs"], stats["open_jobs"], stats["checkpoints"]) == (1, 1, 0, 1)
    assert stats["nbytes"] > 0


# -- backup -------------------------------------------------------------------------------------------------------


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
                await running.until(lambda n=n: running.engine.steps > 100 * (n + 1))
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


# -- sql ----------------------------------------------------------------------------------------------------------


async def test_a_question_is_answered_as_a_table_or_as_json(settings: Settings) -> None:
    async with engine(settings) as running:
        job = await ended(running)
        rows = await admin(settings, "sql", "SELECT stream, hash, version FROM streams", "--json")
        told = await admin(settings, "sql", "SELECT type, count(*) n FROM events GROUP BY 1 ORDER BY 1", "--limit", 1)

    [row] = rows.json
    assert (row["stream"], len(row["hash"])) == (f"job/{job}", 64)
    assert told.out.split() == ["type", "n", "job_admitted", "1"]
    assert told.err == "there are more than 1 rows: give a higher --limit\n"


@pytest.mark.parametrize("statement", ["DELETE FROM events", "SELECT 1; SELECT 2", "nonsense"])
async def test_a_statement_that_is_no_question_exits_with_2(settings: Settings, statement: str) -> None:
    async with engine(settings):
        done = await admin(settings, "sql", statement)

    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith("error: statement: ")


async def test_a_question_has_a_time_limit(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "keyframe.db")):
        pass
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    (tmp_path / "keyframe.db").touch()

    done = await admin(settings_of(tmp_path), "sql", endless, "--timeout", "0.1s")

    assert done.err == "error: the statement took longer than 0.1 s: ask for less, or give it more time\n"


async def test_the_shortest_and_the_longest_time_are_times_to_postgres_too(new: NewSettings) -> None:
    shared = new("postgres", "shared")
    async with open_journal(shared.store_url):
        pass

    short = await admin(shared, "sql", "SELECT pg_sleep(600)", "--timeout", "0.0001s")
    long = await admin(shared, "sql", "SELECT 1", "--timeout", "36500d")

    assert (short.code, short.err.count("\n"), long.code) == (1, 1, 0)
    assert "took longer than 0.0001 s" in short.err
