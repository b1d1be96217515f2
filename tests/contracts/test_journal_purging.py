"""What every journal promises of streams that move or are forgotten, and of the blobs beside them."""

from contextlib import suppress

import pytest
from msgspec.structs import replace

from store.chain import broken
from store.errors import StreamConflict
from store.journal import Appended, IdempotencyKey, Journal, NewEvent, StreamCopy
from store.open import open_journal
from store.upkeep import go_on_purging
from tests.contracts.journals import ON_SQL, blob, change, connected, job, whole_log, write

# Streams


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


# Inline blobs


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
