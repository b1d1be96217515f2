"""A store as it is at one moment, and another one made of that."""

import itertools
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from store.blobs import digest_of
from store.dump import Page, fill, snapshot
from store.errors import DamagedDump, SchemaMismatch, StoreNotEmpty
from store.journal import Append, Blob, IdempotencyKey, JobRow, Journal, NewEvent
from store.open import open_journal

NewUrl = Callable[[str], str]


@pytest.fixture
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> NewUrl:
    numbers = itertools.count()

    def new(kind: str) -> str:
        if kind == "postgres":
            url: str = request.getfixturevalue("new_database")()
            return url
        return f"sqlite:///{tmp_path}/{next(numbers)}.db"

    return new


def row(job: str, at: float = 1.0) -> JobRow:
    return JobRow(job, "queued", "toy", 5, at, at, open=True, owner=None, attempts=2, metadata={"user": "ada ☃"})


def append(stream: str, expected: int, *bodies: bytes, **more: Any) -> Append:
    events = tuple(NewEvent("happened", body) for body in bodies)
    return Append(stream=stream, expected=expected, epoch=0, at=1.5, events=events, **more)


async def write(journal: Journal) -> None:
    await journal.append(append("job/gone", 0, b"1", b"2"))
    small = Blob(digest_of(b"small"), b"small")
    key = IdempotencyKey("key", "print")
    await journal.append(append("job/a", 0, *[b"%d" % n for n in range(450)], row=row("a"), key=key, blobs=(small,)))
    await journal.append(append("job/b", 0, b"\x00\xff", checkpoint=b"saved", row=row("b", 2.0)))
    await journal.append(append("job/gone", 2, b"3"))
    await journal.purge("job/gone", expected=3, epoch=0)


async def told(journal: Journal) -> Any:
    """All that a journal knows."""
    return (
        await journal.read_all(),
        await journal.load_many(await journal.streams("")),
        await journal.jobs(),
        await journal.job_of_key("key"),
        await journal.blobs([digest_of(b"small")]),
    )


def copied(source: str, target: str, change: Callable[[Page], Page] = lambda page: page) -> None:
    with snapshot(source) as taken:
        fill(target, map(change, taken.pages()), revision=taken.revision, position=taken.position)


@pytest.mark.parametrize("kinds", [("sqlite", "sqlite"), ("sqlite", "postgres"), ("postgres", "sqlite")])
async def test_a_store_is_the_same_in_another_database(kinds: tuple[str, str], new_url: NewUrl) -> None:
    source, target = map(new_url, kinds)
    async with open_journal(source) as journal:
        await write(journal)
        expected = await told(journal)

        copied(source, target)  # beside the writer

        newest = (await journal.append(append("job/c", 0, b"1"))).position
    async with open_journal(target) as journal:
        assert await told(journal) == expected
        assert (await journal.append(append("job/c", 0, b"1"))).position == newest  # one that had gone is not reused


async def test_what_is_written_meanwhile_is_not_half_in_it(new_url: NewUrl) -> None:
    for kind in ("sqlite", "postgres"):
        source, target = new_url(kind), new_url(kind)
        async with open_journal(source) as journal:
            await write(journal)
            expected = await told(journal)

            with snapshot(source) as taken:
                pages = taken.pages()
                first = next(pages)
                await journal.append(append("job/a", 450, b"later", row=row("a", 9.0), checkpoint=b"new"))
                await journal.append(append("job/d", 0, b"later", row=row("d")))
                fill(target, iter([first, *pages]), revision=taken.revision, position=taken.position)

        async with open_journal(target) as journal:
            assert await told(journal) == expected


async def test_an_empty_store_is_copied_too(new_url: NewUrl) -> None:
    source, target = new_url("sqlite"), new_url("postgres")
    async with open_journal(source):
        copied(source, target)
    async with open_journal(target) as journal:
        assert (await journal.append(append("job/a", 0, b"1"))).position == 1


async def test_a_store_with_something_in_it_is_left_alone(new_url: NewUrl) -> None:
    source, target = new_url("sqlite"), new_url("postgres")
    async with open_journal(source) as journal:
        await write(journal)
    async with open_journal(target) as journal:
        await journal.append(append("job/theirs", 0, b"1"))

    with pytest.raises(StoreNotEmpty, match="the store has streams already: take an empty one"):
        copied(source, target)

    async with open_journal(target) as journal:
        assert await journal.streams("") == ["job/theirs"]


def damaged(table: str, column: str, value: object) -> Callable[[Page], Page]:
    def change(page: Page) -> Page:
        if page.table != table:
            return page
        place = page.columns.index(column)
        first, *rest = page.rows
        return msgspec.structs.replace(page, rows=[(*first[:place], value, *first[place + 1 :]), *rest])

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (damaged("events", "body", b"other"), "is not what was written"),
        (damaged("events", "at", 9.0), "is not what was written"),
        (damaged("streams", "hash", b"other"), "the head does not carry the hash"),
        (damaged("streams", "version", 7), "its head says 7"),
        (damaged("blobs", "data", b"other"), "its bytes do not hash to its name"),
        (damaged("streams", "stream", "job/other"), "job/other: ends at event 0, its head says 450"),
        (lambda page: page if page.table != "streams" else Page("streams", page.columns, page.rows[1:]), "no head"),
    ],
)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_what_is_not_sound_is_named_and_nothing_of_it_is_there(
    kind: str, change: Callable[[Page], Page], says: str, new_url: NewUrl
) -> None:
    source, target = new_url("sqlite"), new_url(kind)
    async with open_journal(source) as journal:
        await write(journal)

    with pytest.raises(DamagedDump, match=says):
        copied(source, target, change)

    async with open_journal(target) as journal:
        assert await journal.streams("") == await journal.jobs() == await journal.read_all() == []


async def test_a_dump_of_newer_code_is_refused(new_url: NewUrl) -> None:
    with pytest.raises(SchemaMismatch, match="use newer code"):
        fill(new_url("sqlite"), [], revision="9999", position=0)


async def test_a_store_of_another_revision_is_not_dumped(new_url: NewUrl) -> None:
    url = new_url("sqlite")
    async with open_journal(url):
        pass
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()

    with pytest.raises(SchemaMismatch, match="revision 9999"), snapshot(url):
        pass
