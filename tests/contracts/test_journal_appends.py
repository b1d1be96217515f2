"""What every journal promises of appends: which are taken, which are refused, and that none harms another."""

import asyncio
from collections import Counter
from collections.abc import Awaitable

import anyio
import anyio.lowlevel
import pytest

from store.errors import KeyTaken, StreamConflict
from store.journal import (
    Appended,
    Event,
    IdempotencyKey,
    Journal,
    Loaded,
)
from store.open import open_journal
from tests.contracts.journals import ON_SQL, blob, bodies, change, job, whole_log, write

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
