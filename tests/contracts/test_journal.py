"""What every journal promises, asked of each: what was written comes back."""

from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace

from store.errors import CorruptBlob
from store.journal import Appended, Checkpoint, Event, Journal, Loaded, StoreStatistics
from store.open import open_journal
from tests.contracts.journals import ON_SQL, blob, bodies, change, job, unhashed, write

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


# The store as a whole


async def test_a_store_is_counted(journal: Journal) -> None:
    await journal.append(write("a", 0, b"1", b"2", checkpoint=b"c", blobs=(blob(b"xyz"),), row=job("a")))
    await journal.append(write("b", 0, b"3", row=job("b", open=False)))

    counted = await journal.statistics_of_store()

    assert replace(counted, nbytes=None) == StoreStatistics(
        streams=2, events=3, checkpoints=1, jobs=2, open_jobs=1, blobs=1, blob_bytes=3, last_position=3, nbytes=None
    )


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
