"""What every journal promises of owners: a claim and a lease shut all others out."""

import pytest
from msgspec.structs import replace

from store.errors import LeaseLost, StreamConflict
from store.journal import Appended, Journal
from tests.contracts.journals import bodies, job, whole_log, write

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
