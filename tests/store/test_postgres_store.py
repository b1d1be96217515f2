"""One PostgreSQL database: shared by engines, and usable again after the connection is lost."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from functools import partial

import anyio
import psycopg
import pytest
from msgspec.structs import replace
from sqlalchemy import Connection

from store.database import POLL_S, RETRY_S
from store.errors import KeyTaken, StoreUnavailable, StreamConflict
from store.journal import IdempotencyKey, Journal
from store.open import database_at, open_journal
from store.pg_group import WRITE_LOCK
from store.session import Session
from tests.store.appender import STREAM, step

CUT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


async def test_engines_write_to_one_database_and_only_one_of_them_at_a_place(new_database: Callable[[], str]) -> None:
    url = new_database()
    async with open_journal(url) as one, open_journal(url) as other:
        await one.append(step(0))
        assert (await other.append(step(1))).version == 2

        with pytest.raises(StreamConflict):
            await one.append(step(1))  # it still thinks that the stream is where it left it
        assert (await one.append(step(2))).version == 3
        assert await one.read(STREAM) == await other.read(STREAM)


async def test_a_key_that_two_engines_use_at_once_stands_for_one_job(new_database: Callable[[], str]) -> None:
    url = new_database()
    async with open_journal(url) as one, open_journal(url) as other:
        taken = 0
        for number in range(20):
            key = IdempotencyKey(f"key-{number}", "f")
            answers = [
                journal.append(replace(step(0), stream=f"{name}-{number}", key=key))
                for name, journal in (("one", one), ("other", other))
            ]
            outcomes = await asyncio.gather(*answers, return_exceptions=True)
            taken += sum(isinstance(outcome, KeyTaken) for outcome in outcomes)
            found = await one.job_of_key(key.key)
            assert found is not None
            assert await one.streams(found[0])

        assert taken == 20
        assert len(await one.streams("")) == 20


async def test_a_tail_misses_nothing_of_several_writers(new_database: Callable[[], str]) -> None:
    """Sequence order is commit order: a reader that went on after a position would else lose what commits later."""
    url = new_database()
    async with open_journal(url) as one, open_journal(url) as other, open_journal(url, writable=False) as reader:
        seen: list[int] = []

        async def write(journal: Journal, name: str) -> None:
            for number in range(30):
                group = [journal.append(replace(step(number), stream=f"{name}-{lane}")) for lane in range(7)]
                await asyncio.gather(*group)

        async def tail() -> None:
            while len(seen) < 2 * 30 * 7:
                seen.extend(event.position for event in await reader.read_all(after=seen[-1] if seen else 0))

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(tail)
                tasks.start_soon(write, one, "one")
                tasks.start_soon(write, other, "other")

        assert seen == [event.position for event in await reader.read_all()]


async def test_an_engine_hears_what_another_has_written(new_database: Callable[[], str]) -> None:
    url = new_database()
    async with open_journal(url) as one, open_journal(url) as other:
        heard: list[str] = []

        async def listen() -> None:
            async for news in other.news():
                heard.extend(each.stream for each in news)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listen)
            with anyio.fail_after(20):
                number = 0
                while not heard:  # it hears what comes after it began to listen
                    await one.append(step(number))
                    await anyio.sleep(0.01)
                    number += 1
                with psycopg.connect(url, autocommit=True) as admin:
                    admin.execute(CUT)
                heard.clear()
                while not heard:
                    with suppress(StoreUnavailable):
                        await one.append(replace(step(0), stream=f"after-{number}"))
                    await anyio.sleep(0.01)
                    number += 1
            tasks.cancel_scope.cancel()


LISTENERS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"


async def test_a_listener_that_was_cut_off_listens_again(new_database: Callable[[], str]) -> None:
    async with overheard(new_database(), poll_s=3600) as (url, one, heard):  # nobody looks who was not woken
        old = await listeners(url)
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid", [list(old)])
        await listeners(url, but=old)

        for number in range(3):  # the first may be read because it listens anew; the others need a bell each
            await one.append(replace(step(0), stream=f"after-{number}"))
            while f"after-{number}" not in heard:
                await anyio.sleep(0.001)


async def test_what_nobody_rings_for_is_found_by_looking(new_database: Callable[[], str]) -> None:
    gets_no_other = 3600  # who has lost its connection
    async with overheard(new_database(), poll_s=0.05, retry_s=gets_no_other) as (url, one, heard):
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(CUT)
        with suppress(StoreUnavailable):
            await one.append(replace(step(0), stream="lost"))
        await one.append(replace(step(0), stream="after"))
        while "after" not in heard:
            await anyio.sleep(0.001)


@asynccontextmanager
async def overheard(
    url: str, *, poll_s: float = POLL_S, retry_s: float = RETRY_S
) -> AsyncIterator[tuple[str, Journal, list[str]]]:
    """One that writes, and what another has heard of it so far. It must not take for ever."""
    heard: list[str] = []

    async def listen(journal: Journal) -> None:
        async for news in journal.news():
            heard.extend(each.stream for each in news)

    opened = partial(open_journal, url, poll_s=poll_s, retry_s=retry_s)
    with anyio.fail_after(30):
        async with (
            opened() as one,
            opened() as other,
            anyio.create_task_group() as tasks,
        ):
            await listeners(url)
            tasks.start_soon(listen, other)
            number = 0
            while not heard:  # it hears what comes after it began to listen
                await one.append(replace(step(0), stream=f"before-{number}"))
                await anyio.sleep(0.01)
                number += 1
            yield url, one, heard
            tasks.cancel_scope.cancel()


async def listeners(url: str, but: Collection[int] = ()) -> set[int]:
    """The connections of two engines that wait to be rung for, once there are two that are none of those."""
    with psycopg.connect(url, autocommit=True) as admin:
        while len(found := {pid for (pid,) in admin.execute(LISTENERS)} - set(but)) < 2:
            await anyio.sleep(0.01)
        return found


async def test_a_group_is_one_statement_and_one_commit(new_database: Callable[[], str]) -> None:
    url = new_database()
    async with open_journal(url) as journal:
        await journal.append(step(0))
        before = commits(url)
        for number in range(1, 101):
            await journal.append(step(number))
        made = commits(url) - before

    assert 100 <= made <= 150  # ours, and whatever the server does besides


async def test_two_databases_of_one_server_are_two_stores(new_database: Callable[[], str]) -> None:
    async with open_journal(new_database()) as one, open_journal(new_database()) as other:
        await one.append(step(0))

        assert await other.load(STREAM) is None


async def test_a_reader_looks_on_beside_a_live_engine(new_database: Callable[[], str]) -> None:
    url = new_database()
    async with open_journal(url) as journal, open_journal(url, writable=False) as reader:
        await journal.append(step(0))

        assert await reader.load(STREAM) == await journal.load(STREAM)
        with pytest.raises(StoreUnavailable, match="not open for writing"):
            await reader.append(step(1))


async def test_a_lost_connection_is_told_once_and_made_again(new_database: Callable[[], str]) -> None:
    url = new_database()
    async with open_journal(url) as journal:
        await journal.append(step(0))
        await journal.load(STREAM)
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(CUT)

        with pytest.raises(StoreUnavailable, match="terminat"):
            await journal.append(step(1))
        loaded = await journal.load(STREAM)  # which changes nothing, and is asked again at once
        assert loaded is not None
        assert loaded.version == 1

        assert (await journal.append(step(1))).version == 2
        loaded = await journal.load(STREAM)
        assert loaded is not None
        assert loaded.version == 2


async def test_a_cancelled_reader_costs_no_connection(new_database: Callable[[], str]) -> None:
    url = new_database()
    async with open_journal(url) as journal:
        await read_at_once(journal)
        before = clients(url)

        for number in range(40):
            with anyio.move_on_after(number * 0.0002):
                await read_at_once(journal)

        assert clients(url) == before


async def read_at_once(journal: Journal) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(journal.load, STREAM)


def commits(url: str) -> int:
    with psycopg.connect(url) as admin:
        row = admin.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
    assert row is not None
    count: int = row[0]
    return count


def clients(url: str) -> set[int]:
    with psycopg.connect(url) as admin:
        rows = admin.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchall()
    return {pid for (pid,) in rows}


def test_commits_take_turns_so_that_positions_follow_them(new_database: Callable[[], str]) -> None:
    url = new_database()
    session = Session(database_at(url))

    def is_free(_connection: Connection) -> bool:
        with psycopg.connect(url) as other:
            row = other.execute("SELECT pg_try_advisory_xact_lock(%s)", [WRITE_LOCK]).fetchone()
        assert row is not None
        free: bool = row[0]
        return free

    try:
        assert not session.transact(is_free)
    finally:
        session.close()


async def test_a_database_that_is_away_is_one_clear_line() -> None:
    with pytest.raises(StoreUnavailable, match=r"connection failed|refused|No such file"):
        async with open_journal("postgresql://nobody@127.0.0.1:1/nowhere"):
            pass
