"""One PostgreSQL database: held by one engine, and usable again after the connection is lost."""

from collections.abc import Callable

import anyio
import psycopg
import pytest
from sqlalchemy import Connection

from store.errors import StoreLocked, StoreUnavailable
from store.journal import Journal
from store.open import database_at, open_journal
from store.postgres import WRITE_LOCK
from store.session import Session
from tests.store.appender import STREAM, step

CUT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


async def test_a_second_engine_is_refused_until_the_first_is_gone(new_database: Callable[[], str]) -> None:
    url = new_database()
    async with open_journal(url):
        with pytest.raises(StoreLocked, match=r"engine \d+ on .* holds this database: stop it first"):
            async with open_journal(url):
                pass

    async with open_journal(url) as journal:
        assert (await journal.append(step(0))).version == 1


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
        with pytest.raises(StoreUnavailable, match="terminat"):
            await journal.load(STREAM)

        assert (await journal.append(step(1))).version == 2
        loaded = await journal.load(STREAM)
        assert loaded is not None
        assert loaded.version == 2
        with pytest.raises(StoreLocked):
            async with open_journal(url):
                pass


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
