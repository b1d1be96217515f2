"""The scenarios. One more is one more function in `SCRIPTS` or in `WORK`, or a `Scenario` where neither will do."""

import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import alembic.command  # noqa: F401  what every process needs is imported once, before it is forked
import anyio

from engine.actor import stream
from engine.check import check
from store.blobs import MemoryBlobs, digest_of
from store.errors import StoreUnavailable
from store.open import open_journal, revisions, upgrade
from store.schema import REVISION
from tests.crash.calls import adopt, append, end_lease, hold_lease, job, key, put, replace_rows, row_of, small, sweep
from tests.crash.checker import LARGE, SMALL, Sight, problems_after, sight
from tests.crash.jobs import (
    a_collection,
    a_finished_job,
    a_fork,
    a_half_done_job,
    a_job,
    a_migration,
    a_move,
    a_paused_job,
    a_takeover,
    old_and_new_jobs,
)
from tests.crash.retried import Before, Work, no_jobs, retried
from tests.crash.scenario import Place, Prepare, Scenario, Tell, nothing
from tests.crash.script import Script, Store, scripted
from tests.goldens import fill
from tests.history import FOLDER

OLD_STORE = FOLDER / "schema-0001.db"

# -- what is there before ---------------------------------------------------------------------------------------


async def an_empty_store(place: Place) -> None:
    async with open_journal(place.journal):
        pass


async def an_old_store(place: Place) -> None:
    if place.url:
        fill(place.url, OLD_STORE)
    else:
        shutil.copy(OLD_STORE, place.folder / "store.db")


# -- scripts ----------------------------------------------------------------------------------------------------


async def a_store_from_nothing(store: Store) -> None:
    await store.do(append("a", 0, b"first"))


async def appends(store: Store) -> None:
    """All that an append can carry, alone and in groups, with some that are refused."""
    await store.do(job("1", 0, 1, key=key(0)))
    await store.do(job("1", 1, 2, claim=True, blobs=small(0)))
    await store.do(
        job("2", 0, 2, key=key(1)),
        job("1", 2, 4, epoch=1),
        append("c", 0, b"1", key=key(0)),  # refused: the key is taken
        append("b", 0, b"1", b"2", blobs=small(1), checkpoint=b"after 2" * 1000),
        append("b", 0, b"3"),  # refused: b is at 2
    )
    await store.do(append("c", 0, bytes(9000), claim=True), append("c", 1, epoch=1, checkpoint=b"no event"))
    await store.do(append("b", 2, b"3", claim=True, checkpoint=b"after 3"), append("b", 3, b"too late"))


async def a_second_engine(store: Store) -> None:
    """It opens what the first one left, takes the streams over and goes on; what the first still sends is refused."""
    await store.do(hold_lease("first"))
    await store.do(*(append(stream, 0, b"1", claim=True, checkpoint=b"1", lease="first") for stream in "abc"))
    await store.do(append("a", 1, b"2", epoch=1), append("b", 1, b"2", epoch=1))
    await store.reopen()
    await store.do(end_lease("first"))
    await store.do(hold_lease("second"))
    await store.do(append("a", 2, b"late", epoch=1, lease="first"))
    found = (("a", 2), ("b", 2), ("c", 1))
    await store.do(*(append(stream, version, epoch=1, claim=True, lease="second") for stream, version in found))
    await store.do(append("a", 2, b"3", epoch=2), append("b", 2, b"late", epoch=1), append("c", 1, b"2", epoch=2))


async def large_blobs(store: Store) -> None:
    """Bytes first, and then the event that tells of them."""
    for number, data in enumerate((*LARGE, LARGE[0])):
        await store.do(put(data))
        await store.do(append("a", number, digest_of(data).encode(), checkpoint=data[:10]))


async def a_growing_log(store: Store) -> None:
    """So many appends that SQLite moves its log into the file several times, and writes over the log."""
    for expected in range(12):
        await store.do(append("a", expected, b"%d" % expected * 3000, checkpoint=b"%d" % expected * 6000))


async def a_new_list_of_jobs(store: Store) -> None:
    await store.do(job("1", 0, 2), job("2", 0, 1))
    await store.do(replace_rows([row_of("1", 2), row_of("2", 1)]))
    await store.do(job("2", 1, 4))


async def a_purge(store: Store) -> None:
    """Two jobs end, one is forgotten, with an inline blob that nobody names any more, and its name is used again."""
    await store.do(job("1", 0, 4, key=key(0), blobs=small(0)), job("2", 0, 2, blobs=small(1)))
    await store.do(lambda store: store.journal.purge(stream("1"), expected=4, epoch=0))
    await store.do(lambda store: store.journal.drop_blobs([digest_of(SMALL[0])], grace_s=-60))
    await store.do(job("1", 0, 1, key=key(0)))


async def an_import(store: Store) -> None:
    """A stream comes from elsewhere, once; then it goes on here."""
    await store.do(append("a", 0, b"1"))
    await store.do(adopt("b", b"1", b"2"), adopt("b", b"3"))
    await store.do(append("b", 2, b"3"))


async def a_sweep(store: Store) -> None:
    """What nobody names goes, in packs and files, and may come again."""
    await store.do(put(LARGE[0]), put(LARGE[1]))
    await store.do(append("a", 0, digest_of(LARGE[0]).encode()))
    await store.do(sweep(LARGE[0]))
    await store.do(put(LARGE[1]))
    await store.do(append("a", 1, digest_of(LARGE[1]).encode()))


SCRIPTS: dict[Script, Prepare] = {
    a_store_from_nothing: nothing,
    appends: an_empty_store,
    a_second_engine: an_empty_store,
    large_blobs: an_empty_store,
    a_growing_log: an_empty_store,
    a_new_list_of_jobs: an_empty_store,
    a_purge: an_empty_store,
    an_import: an_empty_store,
    a_sweep: an_empty_store,
}


WORK: dict[Work, Before] = {
    a_job: no_jobs,
    a_takeover: a_half_done_job,
    a_fork: a_finished_job,
    a_migration: a_half_done_job,
    a_collection: old_and_new_jobs,
    a_move: a_paused_job,
}


# -- an upgrade -------------------------------------------------------------------------------------------------


def an_upgrade(prepare: Prepare) -> Scenario:
    """Whatever the store is, it is brought to the code's revision with all that it had; broken off, it is run again."""
    expected = anyio.run(_upgraded, prepare)

    async def live(place: Place, tell: Tell) -> None:
        with suppress(StoreUnavailable):  # a lost connection breaks it off, as a kill does
            upgrade(place.journal)
            tell("upgraded")

    async def check(place: Place, told: Sequence[str]) -> list[str]:
        problems = []
        if told and revisions(place.journal) != (REVISION, REVISION):
            problems.append(f"at revision {revisions(place.journal)}")
        upgrade(place.journal)
        await _list_anew(place)
        return problems + await problems_after(place, [expected])

    return Scenario(live, check, prepare)


async def _upgraded(prepare: Prepare) -> Sight:
    """What there is to see after an upgrade that nothing breaks off."""
    with TemporaryDirectory() as folder:
        place = Place(Path(folder))
        await prepare(place)
        upgrade(place.journal)
        await _list_anew(place)
        async with open_journal(place.journal) as journal:
            return await sight(journal, MemoryBlobs())


async def _list_anew(place: Place) -> None:
    """The list has columns that only the logs can fill."""
    async with open_journal(place.journal) as journal:
        await journal.replace_rows((await check(journal)).rows)


def _named(scripts: Iterable[Script], where: str = "") -> dict[str, Callable[[], Scenario]]:
    return {_name(script) + where: partial(scripted, script, SCRIPTS[script]) for script in scripts}


def _retried(where: str = "") -> dict[str, Callable[[], Scenario]]:
    return {_name(work) + where: partial(retried, work, before) for work, before in WORK.items()}


def _name(function: Callable[..., object]) -> str:
    return function.__name__.replace("_", " ")


THERE = " on postgresql"

WORK_ON_FILES, WORK_ON_POSTGRES = _retried(), _retried(THERE)

ON_FILES: dict[str, Callable[[], Scenario]] = {
    **_named(SCRIPTS),
    "an upgrade": partial(an_upgrade, an_old_store),
    "an upgrade of nothing": partial(an_upgrade, nothing),
    **WORK_ON_FILES,
}

ON_POSTGRES: dict[str, Callable[[], Scenario]] = {
    **_named((a_store_from_nothing, appends, a_second_engine, a_new_list_of_jobs, a_purge, an_import), THERE),
    f"an upgrade{THERE}": partial(an_upgrade, an_old_store),
    **WORK_ON_POSTGRES,
}
