"""A store of each old schema is kept for ever: it is brought up to this code, and its jobs go on where they were.

The files are SQLite; for PostgreSQL the old schema is made by its migrations and filled with the same rows.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, NullPool, create_engine, insert, select

from engine.check import check
from engine.job import State
from store.chain import broken
from store.errors import SchemaMismatch
from store.migrate import migrate
from store.open import open_journal, upgrade
from tests.history import FOLDER
from tests.sim import World, digests, request

STORES = sorted(FOLDER.glob("schema-*.db"))


@pytest.fixture(params=["sqlite", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture(params=STORES, ids=lambda path: path.stem)
def url(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> str:
    old: Path = request.param
    if kind == "sqlite":
        return f"sqlite:///{shutil.copy(old, tmp_path / 'store.db')}"
    new_database: Callable[[], str] = request.getfixturevalue("new_database")
    url = new_database()
    fill(url, old, revision=old.stem.removeprefix("schema-"))
    return url


def fill(url: str, old: Path, revision: str) -> None:
    source = create_engine(f"sqlite:///{old}", poolclass=NullPool)
    target = create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool)
    with source.connect() as read, target.begin() as write:
        migrate(write, revision)
        old_tables, tables = MetaData(), MetaData()
        old_tables.reflect(read)
        tables.reflect(write)
        for name in ("streams", "events", "checkpoints", "blobs", "idempotency", "jobs"):
            rows = [row._asdict() for row in read.execute(select(old_tables.tables[name]))]
            write.execute(insert(tables.tables[name]), [as_booleans(row) for row in rows])
        write.exec_driver_sql("SELECT setval(pg_get_serial_sequence('events', 'position'), max(position)) FROM events")


def as_booleans(row: dict[str, Any]) -> dict[str, Any]:
    return {name: bool(value) if name == "open" else value for name, value in row.items()}


async def test_an_old_store_is_refused_until_it_is_upgraded_and_then_all_is_there(url: str) -> None:
    with pytest.raises(SchemaMismatch, match="engine-admin db upgrade"):
        async with open_journal(url):
            pass

    upgrade(url)

    async with open_journal(url) as journal:
        streams = await journal.streams("")
        assert len(streams) == 6
        for stream in streams:
            assert broken(await journal.read(stream), await journal.load(stream)) is None
        report = await check(journal)
        assert report.events == 82
        assert [problem for problem in report.problems if "job list" not in problem] == []
        assert await journal.job_of_key("key-0") is not None


async def test_jobs_of_an_old_store_end_with_the_bits_of_new_ones(url: str) -> None:
    upgrade(url)
    fresh = World()
    async with fresh.engine() as running:
        job = await running.ended((await running.client.submit(request(steps=60))).id)
        expected = digests(await running.client.checkpoints(job.id))

    async with open_journal(url) as journal, World(journal).engine() as running:
        waiting = await running.ended("job-0005")
        half_done = await running.ended("job-0004")

        assert waiting.state is half_done.state is State.COMPLETED
        assert digests(await running.client.checkpoints("job-0004")) == expected
        ran = [unit.plan.step for unit in running.workers[0].ran if unit.id.job == "job-0004"]
        assert ran.count(0) == 1  # that of its last node: what was done was not done again
