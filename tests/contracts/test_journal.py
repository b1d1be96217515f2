"""What every journal promises, asked of each."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from blake3 import blake3
from msgspec.structs import replace
from sqlalchemy import Connection, NullPool, create_engine, text

from store.chain import broken
from store.errors import CorruptBlob, KeyTaken, LeaseLost, StreamConflict
from store.journal import (
    Append,
    Appended,
    Blob,
    Checkpoint,
    Event,
    IdempotencyKey,
    JobFilter,
    JobRow,
    Journal,
    Loaded,
    NewEvent,
    StoreStatistics,
    StreamCopy,
)
from store.open import open_journal
from store.upkeep import go_on_purging

ON_SQL = pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "sqlite":
            return f"sqlite:///{tmp_path}/store.db"
        case "postgres":
            new_database: Callable[[], str] = request.getfixturevalue("new_database")
            return new_database()
    return "memory://"


@pytest.fixture
async def journal(url: str) -> AsyncIterator[Journal]:
    async with open_journal(url) as journal:
        yield journal


def write(
    stream: str,
    expected: int,
    *bodies: bytes,
    epoch: int = 0,
    claim: bool = False,
    checkpoint: bytes | None = None,
    blobs: tuple[Blob, ...] = (),
    row: JobRow | None = None,
    key: IdempotencyKey | None = None,
) -> Append:
    return Append(
        stream=stream,
        expected=expected,
        epoch=epoch,
        at=1.5,
        events=tuple(NewEvent("happened", body) for body in bodies),
        claim=claim,
        checkpoint=checkpoint,
        blobs=blobs,
        row=row,
        key=key,
    )


def job(id: str, *, status: str = "queued", priority: int = 0, at: float = 0.0, open: bool = True) -> JobRow:
    return JobRow(
        id=id, status=status, model="shapes", priority=priority, submitted_at=at, updated_at=at + 1, open=open
    )


def blob(data: bytes) -> Blob:
    return Blob(digest=blake3(data).hexdigest(), data=data)


def change(url: str, statement: str) -> None:
    """Do behind the journal's back what it would never do."""
    with connected(url) as connection:
        connection.execute(text(statement))


def connected(url: str) -> AbstractContextManager[Connection]:
    """A transaction of another program."""
    return create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool).begin()


def bodies(events: list[Event] | tuple[Event, ...]) -> list[bytes]:
    return [event.body for event in events]


def unhashed(events: list[Event]) -> list[Event]:
    return [replace(event, hash=b"") for event in events]


async def whole_log(journal: Journal) -> list[Event]:
    return await journal.read_all(limit=100_000)


# Events


async def test_events_come_back_as_they_were_written(journal: Journal) -> None:
    appended = await journal.append(write("job/1", 0, b"a", b"b"))

    assert appended == Appended(version=2, position=2)
    assert unhashed(await journal.read("job/1")) == [
        Event(position=1, stream="job/1", version=1, epoch=0, type="happened", at=1.5, body=b"a"),
        Event(position=2, stream="job/1", version=2, epoch=0, type="happened", at=1.5, body=b"b"),
    ]


async def test_a_stream_nobody_wrote_to_is_absent(journal: Journal) -> None:
    assert await journal.load("job/1") is None
    assert await journal.read("job/1") == []
    assert await journal.read_all() == []


async def test_reading_goes_on_after_a_position_and_stops_at_the_limit(journal: Journal) -> None:
    await journal.append(write("a", 0, b"1", b"2"))
    await journal.append(write("b", 0, b"3"))
    await journal.append(write("a", 2, b"4", b"5"))

    assert bodies(await journal.read("a", after=1, limit=2)) == [b"2", b"4"]
    assert bodies(await journal.read("a", after=3)) == [b"4", b"5"]  # a position of another stream
    assert bodies(await journal.read("b", after=2)) == [b"3"]
    assert bodies(await journal.read("b", after=3)) == bodies(await journal.read("a", after=9)) == []
    assert bodies(await journal.read_all(after=1, limit=3)) == [b"2", b"3", b"4"]
    assert bodies(await journal.read_all(after=5)) == []


async def test_answers_name_the_last_event_of_each_append(journal: Journal) -> None:
    pending = [
        journal.append(write("a", 0, b"1", b"2", checkpoint=b"c")),
        journal.append(write("b", 0, b"3", checkpoint=b"c")),
        journal.append(write("c", 0, checkpoint=b"c")),
        journal.append(write("b", 1, b"4", b"5", b"6")),
    ]

    assert [await answer for answer in pending] == [
        Appended(version=2, position=2),
        Appended(version=1, position=3),
        Appended(version=0, position=0),
        Appended(version=4, position=6),
    ]


@pytest.mark.parametrize("name", ["jøb/日本語", "a'; DROP TABLE events; --", "%s :stream {}", " "])
async def test_a_name_is_only_a_name(journal: Journal, name: str) -> None:
    await journal.append(write(name, 0, b"\x00\xff", checkpoint=b"\x00"))

    assert bodies(await journal.read(name)) == [b"\x00\xff"]
    assert await journal.streams("") == [name]


async def test_a_large_body_comes_back_whole(journal: Journal) -> None:
    body = bytes(range(256)) * 20_000

    await journal.append(write("a", 0, body, checkpoint=body))

    loaded = await journal.load("a")
    assert loaded is not None
    assert loaded.checkpoint == Checkpoint(version=1, body=body)
    assert bodies(await journal.read("a")) == [body]


async def test_streams_are_listed_by_prefix_in_order(journal: Journal) -> None:
    for name in ("job/b", "job/B", "job/é", "jobs", "session/a", "job/a"):
        await journal.append(write(name, 0, b"x"))

    assert await journal.streams("job/") == ["job/B", "job/a", "job/b", "job/é"]
    assert await journal.streams("job/", after="job/a", limit=1) == ["job/b"]
    assert len(await journal.streams("")) == 6


# Order and conflict


@pytest.mark.parametrize("expected", [0, 1, 3])
async def test_an_append_that_did_not_see_the_latest_leaves_no_trace(journal: Journal, expected: int) -> None:
    await journal.append(write("a", 0, b"1", b"2", row=job("a")))
    late = write(
        "a",
        expected,
        b"x",
        b"y",
        claim=True,
        checkpoint=b"x",
        blobs=(blob(b"x"),),
        row=job("a", status="running"),
        key=IdempotencyKey("k", "f"),
    )

    with pytest.raises(StreamConflict) as caught:
        await journal.append(late)

    assert (caught.value.stream, caught.value.expected, caught.value.epoch) == ("a", expected, 0)
    loaded = await journal.load("a")
    assert loaded is not None
    log = await whole_log(journal)
    assert loaded == Loaded(version=2, epoch=0, checkpoint=None, events=tuple(log), hash=log[-1].hash)
    assert await journal.blobs([blob(b"x").digest]) == {}
    assert await journal.jobs() == [job("a")]
    assert await journal.job_of_key("k") is None


@pytest.mark.parametrize(("expected", "epoch"), [(1, 0), (0, 1)])
async def test_a_stream_starts_at_nothing(journal: Journal, expected: int, epoch: int) -> None:
    with pytest.raises(StreamConflict):
        await journal.append(write("a", expected, b"x", epoch=epoch))

    assert await journal.load("a") is None
    assert await journal.streams("") == []


async def test_appends_may_be_chained_without_waiting(journal: Journal) -> None:
    pending = [journal.append(write("a", version, b"%d" % version)) for version in range(300)]

    assert [(await answer).version for answer in pending] == list(range(1, 301))
    assert bodies(await journal.read("a")) == [b"%d" % version for version in range(300)]


async def test_a_refused_append_harms_none_that_was_queued_with_it(journal: Journal) -> None:
    before = journal.append(write("a", 0, b"1"))
    refused = journal.append(write("a", 0, b"x"))
    after = journal.append(write("a", 1, b"2"))
    other = journal.append(write("b", 0, b"3"))

    with pytest.raises(StreamConflict):
        await refused
    assert [(await answer).version for answer in (before, after, other)] == [1, 2, 1]
    assert bodies(await whole_log(journal)) == [b"1", b"2", b"3"]


@ON_SQL
async def test_what_the_database_itself_refuses_harms_none_that_was_queued_with_it(journal: Journal, url: str) -> None:
    await journal.append(write("damaged", 0, b"1", b"2"))
    change(url, "UPDATE streams SET version = 1 WHERE stream = 'damaged'")

    before = journal.append(write("a", 0, b"3"))
    refused = journal.append(write("damaged", 1, b"x"))
    after = journal.append(write("a", 1, b"4"))

    with pytest.raises(StreamConflict):
        await refused
    assert [(await answer).version for answer in (before, after)] == [1, 2]
    assert bodies(await whole_log(journal)) == [b"1", b"2", b"3", b"4"]


@ON_SQL
async def test_a_value_that_no_database_takes_is_its_callers_trouble_alone(journal: Journal) -> None:
    before = journal.append(write("a", 0, b"1"))
    refused = journal.append(write("b", 0, b"x", row=job("b", priority=2**70)))
    after = journal.append(write("a", 1, b"2"))

    with pytest.raises(Exception, match=r"(?i)int|range"):
        await refused
    assert [(await answer).version for answer in (before, after)] == [1, 2]
    assert await journal.load("b") is None


async def test_a_cancelled_caller_harms_nobody(journal: Journal) -> None:
    with anyio.move_on_after(0):
        await journal.append(write("a", 0, b"1"))
    others = [journal.append(write("b", 0, b"2")), journal.append(write("a", 1, b"3"))]

    assert [(await answer).version for answer in others] == [1, 2]
    assert bodies(await whole_log(journal)) == [b"1", b"2", b"3"]


async def test_a_cancelled_reader_harms_nobody(journal: Journal) -> None:
    await journal.append(write("a", 0, b"1"))

    for wait_s in (0, 0.001, 0.003):
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(journal.load, "a")
            await anyio.sleep(wait_s)
            tasks.cancel_scope.cancel()

    with anyio.fail_after(5):
        assert bodies(await journal.read("a")) == [b"1"]


async def test_a_cancelled_owner_closes_it_with_all_that_was_queued(url: str) -> None:
    pending: list[Awaitable[Appended]] = []
    with anyio.CancelScope() as scope:
        async with open_journal(url) as journal:
            await journal.load("a")
            pending = [journal.append(write("a", version, b"x")) for version in range(20)]
            scope.cancel()
            await anyio.sleep_forever()

    assert all(isinstance(answer, asyncio.Future) and answer.done() for answer in pending)
    assert [(await answer).version for answer in pending] == list(range(1, 21))


@pytest.mark.parametrize("streams", [["a"], [f"s{n}" for n in range(8)]], ids=["one stream", "many streams"])
async def test_concurrent_writers_lose_nothing_and_a_tail_sees_it_in_order(
    journal: Journal, streams: list[str]
) -> None:
    written: list[bytes] = []
    tail: list[Event] = []

    async def work(writer: int) -> None:
        stream = streams[writer % len(streams)]
        for number in range(12):
            body = b"%d-%d" % (writer, number)
            await append_somehow(journal, stream, body)
            written.append(body)

    async def follow() -> None:
        while len(tail) < 8 * 12:
            tail.extend(await journal.read_all(after=tail[-1].position if tail else 0, limit=7))
            await anyio.lowlevel.checkpoint()

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            for writer in range(8):
                tasks.start_soon(work, writer)

    assert tail == await whole_log(journal)
    assert Counter(bodies(tail)) == Counter(written)
    for stream in streams:
        versions = [event.version for event in tail if event.stream == stream]
        assert versions == list(range(1, len(versions) + 1))


async def append_somehow(journal: Journal, stream: str, body: bytes) -> None:
    while True:
        loaded = await journal.load(stream)
        try:
            await journal.append(write(stream, loaded.version if loaded else 0, body))
        except StreamConflict:
            continue
        return


@ON_SQL
async def test_a_position_is_never_given_out_twice(journal: Journal, url: str) -> None:
    await journal.append(write("a", 0, b"1", b"2", b"3"))
    change(url, "DELETE FROM events WHERE position > 1")

    appended = await journal.append(write("b", 0, b"4"))

    assert appended.position == 4
    assert bodies(await journal.read_all(after=3)) == [b"4"]


# Fencing


async def test_a_claim_shuts_the_old_owner_out(journal: Journal) -> None:
    await journal.append(write("a", 0, b"1"))
    await journal.append(write("a", 1, b"claimed", claim=True))

    for version in (1, 2):
        with pytest.raises(StreamConflict):
            await journal.append(write("a", version, b"x", checkpoint=b"x"))

    assert (await journal.append(write("a", 2, b"2", epoch=1))).version == 3
    assert [event.epoch for event in await journal.read("a")] == [0, 1, 1]


async def test_of_two_claimers_one_wins(journal: Journal) -> None:
    await journal.append(write("a", 0, b"1"))

    first = journal.append(write("a", 1, b"first", claim=True))
    second = journal.append(write("a", 1, b"second", claim=True))

    await first
    with pytest.raises(StreamConflict):
        await second
    loaded = await journal.load("a")
    assert loaded is not None
    assert (loaded.version, loaded.epoch) == (2, 1)


async def test_a_claim_needs_no_event(journal: Journal) -> None:
    assert await journal.append(write("a", 0, claim=True)) == Appended(version=0, position=0)

    with pytest.raises(StreamConflict):
        await journal.append(write("a", 0, b"x"))
    assert (await journal.append(write("a", 0, b"1", epoch=1))).version == 1


# Checkpoints


async def test_loading_starts_at_the_last_checkpoint(journal: Journal) -> None:
    await journal.append(write("a", 0, b"1", checkpoint=b"one"))
    await journal.append(write("a", 1, b"2", b"3", checkpoint=b"three"))
    await journal.append(write("a", 3, b"4", epoch=0))
    await journal.append(write("a", 4, b"5", claim=True))

    loaded = await journal.load("a")

    assert loaded is not None
    assert (loaded.version, loaded.epoch) == (5, 1)
    assert loaded.checkpoint == Checkpoint(version=3, body=b"three")
    assert bodies(loaded.events) == [b"4", b"5"]


async def test_a_checkpoint_of_the_same_version_replaces_the_other(journal: Journal) -> None:
    await journal.append(write("a", 0, b"1", checkpoint=b"old"))
    await journal.append(write("a", 1, checkpoint=b"new"))

    loaded = await journal.load("a")

    [event] = await journal.read("a")
    assert loaded == Loaded(
        version=1, epoch=0, checkpoint=Checkpoint(version=1, body=b"new"), events=(), hash=event.hash
    )


async def test_many_streams_load_as_one(journal: Journal) -> None:
    names = [f"job/{number}" for number in range(1100)]
    for answer in [journal.append(write(name, 0, b"1", b"2", checkpoint=b"c")) for name in names[:-1]]:
        await answer
    await journal.append(write("job/0", 2, b"3"))

    loaded = await journal.load_many(names)

    assert set(loaded) == set(names[:-1])
    assert bodies(loaded["job/0"].events) == [b"3"]
    assert loaded["job/7"] == await journal.load("job/7")
    assert await journal.load_many([]) == {}


async def test_what_is_loaded_while_others_write_is_of_one_moment(journal: Journal) -> None:
    async def work() -> None:
        for version in range(60):
            await journal.append(write("a", version, b"%d" % version, checkpoint=None if version % 3 else b"c"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        version = 0
        while version < 60:
            if loaded := await journal.load("a"):
                assert loaded.checkpoint is not None
                versions = [event.version for event in loaded.events]
                assert versions == list(range(loaded.checkpoint.version + 1, loaded.version + 1))
                version = loaded.version
            await anyio.lowlevel.checkpoint()


# Idempotency keys


async def test_a_key_is_taken_once(journal: Journal) -> None:
    await journal.append(write("a", 0, b"1", key=IdempotencyKey("k", "of a")))
    again = write("b", 0, b"x", row=job("b"), key=IdempotencyKey("k", "of b"))

    with pytest.raises(KeyTaken) as caught:
        await journal.append(again)

    assert (caught.value.key, caught.value.stream, caught.value.fingerprint) == ("k", "a", "of a")
    assert await journal.job_of_key("k") == ("a", "of a")
    assert await journal.job_of_key("other") is None
    assert await journal.load("b") is None
    assert await journal.jobs() == []


async def test_a_request_that_is_sent_twice_at_once_is_taken_once(journal: Journal) -> None:
    first = journal.append(write("a", 0, b"1", key=IdempotencyKey("k", "f")))
    second = journal.append(write("b", 0, b"2", key=IdempotencyKey("k", "f")))
    repeated = journal.append(write("a", 0, b"1", key=IdempotencyKey("k", "f")))

    await first
    for answer in (second, repeated):
        with pytest.raises(KeyTaken, match=r"a$"):
            await answer
    assert bodies(await whole_log(journal)) == [b"1"]


# Blobs


async def test_inline_blobs_are_kept_once_and_found_again(journal: Journal) -> None:
    red, blue = blob(b"red"), blob(b"blue")
    await journal.append(write("a", 0, b"1", blobs=(red, blue, red)))
    await journal.append(write("b", 0, b"1", blobs=(red,)))

    found = await journal.blobs([red.digest, blue.digest, blob(b"elsewhere").digest])

    assert found == {red.digest: b"red", blue.digest: b"blue"}
    assert await journal.blobs([]) == {}


@ON_SQL
async def test_a_flipped_byte_is_noticed(journal: Journal, url: str) -> None:
    good, bad = blob(b"good"), blob(b"bad")
    await journal.append(write("a", 0, b"1", blobs=(good, bad)))
    change(url, f"UPDATE blobs SET data = {sql_bytes(url, b'baD')} WHERE digest = '{bad.digest}'")

    assert await journal.blobs([good.digest]) == {good.digest: b"good"}
    with pytest.raises(CorruptBlob, match=bad.digest):
        await journal.blobs([good.digest, bad.digest])


def sql_bytes(url: str, data: bytes) -> str:
    return f"x'{data.hex()}'" if url.startswith("sqlite") else f"'\\x{data.hex()}'"


# The list of jobs


async def test_jobs_are_listed_newest_first(journal: Journal) -> None:
    for row in (job("a", at=1), job("c", at=3), job("b", at=2), job("d", at=3)):
        await journal.append(write(row.id, 0, b"1", row=row))

    assert [row.id for row in await journal.jobs()] == ["d", "c", "b", "a"]
    assert [row.id for row in await journal.jobs(limit=2)] == ["d", "c"]
    assert [row.id for row in await journal.jobs(after="c", limit=1)] == ["b"]
    assert await journal.jobs(after="a") == []
    assert await journal.jobs(after="unknown") == []


async def test_open_jobs_are_listed_in_the_order_of_work(journal: Journal) -> None:
    rows = [job("a", at=1), job("b", at=2, priority=9), job("c", at=3, priority=9), job("d", at=0, open=False)]
    for row in rows:
        await journal.append(write(row.id, 0, b"1", row=row))

    assert [row.id for row in await journal.jobs(JobFilter(open=True))] == ["b", "c", "a"]
    assert [row.id for row in await journal.jobs(JobFilter(open=True), after="b")] == ["c", "a"]
    assert [row.id for row in await journal.jobs(JobFilter(open=True), after="c")] == ["a"]
    assert [row.id for row in await journal.jobs(JobFilter(open=False))] == ["d"]


async def test_jobs_are_filtered(journal: Journal) -> None:
    rows = [job("a", status="queued"), job("b", status="running"), job("c", status="running", open=False)]
    for row in rows:
        await journal.append(write(row.id, 0, b"1", row=row))

    assert {row.id for row in await journal.jobs(JobFilter(status="running"))} == {"b", "c"}
    assert {row.id for row in await journal.jobs(JobFilter(status="running", open=True))} == {"b"}
    assert len(await journal.jobs(JobFilter(model="shapes"))) == 3
    assert await journal.jobs(JobFilter(model="other")) == []


async def test_a_job_is_listed_as_it_was_last_written(journal: Journal) -> None:
    await journal.append(write("a", 0, b"1", row=job("a")))
    pending = [journal.append(write("a", n, b"x", row=job("a", status=f"at {n}"))) for n in (1, 2, 3)]
    for answer in pending:
        await answer

    assert await journal.jobs() == [job("a", status="at 3")]


async def test_the_list_can_be_replaced_as_a_whole(journal: Journal) -> None:
    await journal.append(write("a", 0, b"1", row=job("a")))

    await journal.replace_rows([job("b"), job("c", at=1)])
    assert await journal.jobs() == [job("c", at=1), job("b")]

    await journal.replace_rows([])
    assert await journal.jobs() == []


async def test_the_list_is_not_replaced_once_something_newer_was_written(journal: Journal) -> None:
    seen = await journal.append(write("a", 0, b"1", row=job("a")))
    newer = await journal.append(write("a", 1, b"2"))

    assert not await journal.replace_rows([job("b")], at=seen.position)
    assert await journal.jobs() == [job("a")]
    assert await journal.replace_rows([job("b")], at=newer.position)
    assert await journal.jobs() == [job("b")]


async def test_jobs_are_found_by_what_is_known_of_them(journal: Journal) -> None:
    await journal.append(write("a", 0, b"1", row=replace(job("abc", at=1), metadata={"user": "ada", "of": "x"})))
    await journal.append(write("b", 0, b"1", row=replace(job("abd", at=2), attempts=3, owner="e1")))
    await journal.append(write("c", 0, b"1", row=replace(job("b", at=3), metadata={"user": "bob"})))

    async def found(**wanted: Any) -> list[str]:
        return [row.id for row in await journal.jobs(JobFilter(**wanted))]

    assert await found(prefix="ab") == ["abd", "abc"]
    assert await found(prefix="") == ["b", "abd", "abc"]
    assert await found(metadata={"user": "ada"}) == ["abc"]
    assert await found(metadata={"user": "ada", "of": "y"}) == []
    assert await found(attempts_from=2) == ["abd"]
    assert await found(owner="e1") == ["abd"]
    assert await found(submitted_before=3) == ["abd", "abc"]
    assert await found(updated_before=3, prefix="ab") == ["abc"]
    assert await found(updated_after=2) == ["b", "abd"]
    assert (await journal.jobs(JobFilter(prefix="abc")))[0].metadata == {"user": "ada", "of": "x"}


# Chains


async def test_every_event_is_chained_to_the_one_before_it(journal: Journal) -> None:
    pending = [journal.append(write("a", 0, b"1", b"2")), journal.append(write("b", 0, b"x"))]
    pending += [journal.append(write("a", 2, b"3", claim=True)), journal.append(write("a", 3, b"4", epoch=1))]
    for append in pending:
        await append

    for stream in ("a", "b"):
        assert broken(await journal.read(stream), await journal.load(stream)) is None
    assert len({event.hash for event in await whole_log(journal)}) == 5


@ON_SQL
@pytest.mark.parametrize(
    ("damage", "found"),
    [
        ("UPDATE events SET body = hash WHERE version = 2", "event 2 .* is not what was written"),
        ("UPDATE events SET at = 9 WHERE version = 3", "event 3 .* is not what was written"),
        ("DELETE FROM events WHERE version = 2", "event 2 is missing"),
        ("DELETE FROM events WHERE version = 3", "ends at event 2, its head says 3"),
        ("UPDATE events SET version = 4 - version WHERE version <> 2", "event 1 .* is not what was written"),
        ("UPDATE streams SET version = 4", "ends at event 3, its head says 4"),
        ("UPDATE events SET position = position + 10 WHERE version = 2", "event 3 is out of order"),
    ],
)
async def test_a_changed_missing_or_moved_row_breaks_the_chain(
    journal: Journal, url: str, damage: str, found: str
) -> None:
    await journal.append(write("a", 0, b"1", b"2", b"3"))

    change(url, damage if "4 - version" not in damage else "UPDATE events SET version = version + 10")
    if "4 - version" in damage:
        change(url, "UPDATE events SET version = 14 - version WHERE version <> 12")
        change(url, "UPDATE events SET version = 2 WHERE version = 12")

    problem = broken(await journal.read("a"), await journal.load("a"))
    assert problem is not None
    assert re.search(found, problem)


# Leases


async def test_a_live_lease_keeps_its_jobs_from_others(journal: Journal) -> None:
    await journal.hold_lease("one", ttl_s=1e6, url="http://one", models=("shapes",))
    for name, owner in (("a", None), ("b", "one"), ("c", "gone")):
        await journal.append(write(name, 0, b"1", row=replace(job(name), owner=owner)))
    await journal.append(write("d", 0, b"1", row=job("d", open=False)))

    assert [row.id for row in await journal.claimable("two", 10)] == ["a", "c"]
    assert [row.id for row in await journal.claimable("one", 10)] == ["a", "b", "c"]
    assert [row.id for row in await journal.claimable("one", 1)] == ["a"]
    [engine] = await journal.engines()
    assert (engine.name, engine.url, engine.models) == ("one", "http://one", ("shapes",))
    assert 0 < engine.left_s <= 1e6


async def test_a_lease_that_was_ended_gives_its_jobs_free(journal: Journal) -> None:
    await journal.hold_lease("one", ttl_s=1e6)
    await journal.append(write("a", 0, b"1", row=replace(job("a"), owner="one")))

    assert await journal.end_lease("one")

    assert not await journal.end_lease("one")
    assert [row.id for row in await journal.claimable("two", 10)] == ["a"]


async def test_an_append_under_a_lease_that_has_run_out_is_refused(journal: Journal) -> None:
    await journal.hold_lease("one", ttl_s=1e6)
    await journal.append(replace(write("a", 0, b"1"), lease="one"))
    await journal.hold_lease("one", ttl_s=-1.0)

    with pytest.raises(LeaseLost, match="the lease of engine one has run out"):
        await journal.append(replace(write("a", 1, b"2"), lease="one"))
    with pytest.raises(LeaseLost):
        await journal.append(replace(write("b", 0, b"2"), lease="stranger"))

    assert bodies(await whole_log(journal)) == [b"1"]
    assert (await journal.append(write("a", 1, b"2"))).version == 2


# Moving and forgetting


async def test_a_stream_is_the_same_in_another_store(journal: Journal) -> None:
    events = (NewEvent("happened", b"1"), NewEvent("happened", b"2"))
    async with open_journal("memory://") as other:
        await other.append(write("noise", 0, b"x", b"y"))
        await other.append(replace(write("a", 0), events=events, claim=True))
        await other.append(write("a", 2, b"3", epoch=1, checkpoint=b"saved"))
        loaded, log = await other.load("a"), await other.read("a")
    assert loaded is not None
    copy = StreamCopy(
        stream="a", version=3, epoch=1, hash=loaded.hash, events=tuple(log), checkpoint=loaded.checkpoint,
        blobs=(blob(b"data"),), row=job("a"),
    )  # fmt: skip

    await journal.adopt(copy)

    assert await journal.load("a") == loaded
    assert broken(await journal.read("a"), loaded) is None
    assert [row.id for row in await journal.jobs()] == ["a"]
    assert await journal.blobs([blob(b"data").digest]) == {blob(b"data").digest: b"data"}
    assert (await journal.append(write("a", 3, b"4", epoch=1))).version == 4
    with pytest.raises(StreamConflict):
        await journal.adopt(copy)


async def test_a_purged_stream_leaves_nothing_and_its_positions_are_not_given_out_again(journal: Journal) -> None:
    await journal.append(write("job/a", 0, b"1", checkpoint=b"c", row=job("a"), key=IdempotencyKey("k", "f")))
    for version in range(1, 1200, 100):
        await journal.append(write("job/b", version - 1, *[b"2"] * 100, row=job("b")))
    last = (await whole_log(journal))[-1].position

    await journal.purge("job/b", expected=1200, epoch=0)
    await journal.purge("job/a", expected=1, epoch=0)

    assert await journal.load("job/a") is None
    assert await whole_log(journal) == []
    assert await journal.streams("") == []
    assert await journal.jobs() == []
    assert await journal.job_of_key("k") is None
    appended = await journal.append(write("job/a", 0, b"new", row=job("a"), key=IdempotencyKey("k", "g")))
    assert appended == Appended(version=1, position=last + 1)


async def test_a_stream_that_came_back_is_chained_to_what_came_back(journal: Journal) -> None:
    """Forgotten and taken in again, at the same version and epoch, with another history."""
    await journal.append(write("a", 0, b"1"))
    async with open_journal("memory://") as other:
        await other.append(write("a", 0, b"another"))
        loaded, log = await other.load("a"), await other.read("a")
    assert loaded is not None
    await journal.purge("a", expected=1, epoch=0)
    await journal.adopt(StreamCopy(stream="a", version=1, epoch=0, hash=loaded.hash, events=tuple(log)))

    with suppress(StreamConflict):  # a writer may find out by being refused
        await journal.append(write("a", 1, b"2"))
    here = await journal.load("a")
    assert here is not None
    if here.version == 1:
        await journal.append(write("a", 1, b"2"))

    assert broken(await journal.read("a"), await journal.load("a")) is None


@pytest.mark.parametrize(("expected", "epoch"), [(0, 0), (1, 1), (2, 0)])
async def test_a_purge_that_did_not_see_the_latest_takes_nothing(journal: Journal, expected: int, epoch: int) -> None:
    await journal.append(write("a", 0, b"1", checkpoint=b"c"))

    with pytest.raises(StreamConflict):
        await journal.purge("a", expected=expected, epoch=epoch)

    loaded = await journal.load("a")
    assert loaded is not None
    assert loaded.checkpoint is not None


@ON_SQL
async def test_a_purge_that_was_cut_off_is_gone_for_readers_and_can_be_finished(journal: Journal, url: str) -> None:
    await journal.append(write("a", 0, b"1", b"2"))
    change(url, "UPDATE streams SET version = -1")  # as after its first transaction

    assert await journal.load("a") is None
    assert await journal.streams("") == []
    assert await journal.purging() == ["a"]
    with pytest.raises(StreamConflict):
        await journal.append(write("a", 0, b"x"))
    await journal.purge("a", expected=2, epoch=0)

    assert await journal.purging() == []
    assert (await journal.append(write("a", 0, b"x"))).version == 1


@ON_SQL
async def test_whoever_is_late_with_a_purge_takes_nothing_of_the_stream_that_came_after(
    journal: Journal, url: str
) -> None:
    """Two purge a stream at once, and its name is in use again before the slower one has come to its end."""
    await journal.append(write("a", 0, b"1", b"2"))
    await journal.purge("a", expected=2, epoch=0)
    await journal.append(write("a", 0, b"new"))

    with connected(url) as connection:
        assert not go_on_purging(connection, "a")

    assert [event.body for event in await journal.read("a")] == [b"new"]
    assert await journal.load("a") is not None


async def test_inline_blobs_are_listed_and_dropped_but_for_those_that_just_came(journal: Journal) -> None:
    old, new = sorted([blob(b"one"), blob(b"two")], key=lambda blob: blob.digest)
    await journal.append(write("a", 0, b"1", blobs=(old, new)))

    listed = await journal.inline_blobs()
    assert [(each.digest, each.nbytes) for each in listed] == [(old.digest, 3), (new.digest, 3)]
    assert all(-1 < each.age_s < 60 for each in listed)
    assert [each.digest for each in await journal.inline_blobs(after=old.digest)] == [new.digest]
    assert await journal.drop_blobs([old.digest], grace_s=60) == 0
    assert await journal.drop_blobs([old.digest, "unknown"], grace_s=-60) == 1
    assert list(await journal.blobs([old.digest, new.digest])) == [new.digest]


async def test_inline_blobs_that_are_kept_are_as_if_they_had_just_come(journal: Journal) -> None:
    here = blob(b"here")
    await journal.append(write("a", 0, b"1", blobs=(here,)))
    [before] = await journal.inline_blobs()

    assert await journal.keep_blobs([here.digest, "nowhere"]) == {here.digest}

    [after] = await journal.inline_blobs()
    assert after.age_s <= before.age_s + 1
    assert await journal.keep_blobs([]) == set()


async def test_a_store_is_counted(journal: Journal) -> None:
    await journal.append(write("a", 0, b"1", b"2", checkpoint=b"c", blobs=(blob(b"xyz"),), row=job("a")))
    await journal.append(write("b", 0, b"3", row=job("b", open=False)))

    counted = await journal.statistics_of_store()

    assert replace(counted, nbytes=None) == StoreStatistics(
        streams=2, events=3, checkpoints=1, jobs=2, open_jobs=1, blobs=1, blob_bytes=3, last_position=3, nbytes=None
    )


# -- its name -----------------------------------------------------------------------------------------------------


async def test_a_store_has_a_name_of_its_own(journal: Journal, tmp_path: Path) -> None:
    async with open_journal(f"sqlite:///{tmp_path}/other.db") as other:
        assert await journal.identity() == await journal.identity()
        assert await journal.identity() != await other.identity()


@ON_SQL
async def test_a_store_keeps_its_name(url: str) -> None:
    async with open_journal(url) as journal:
        name = await journal.identity()

    async with open_journal(url, writable=False) as again:
        assert await again.identity() == name
