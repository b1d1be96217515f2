"""A store of each schema is kept for ever: it is brought up to this code, and its jobs go on where they were.

The files are SQLite; for PostgreSQL the schema is made by its migrations and filled with the same rows.
`python -m tests.goldens store` writes one of the schema that the code has.
"""

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from msgspec import Struct

from engine.check import check
from engine.job import State
from store.chain import broken
from store.errors import SchemaMismatch
from store.open import open_journal, upgrade
from store.schema import REVISION
from tests.goldens import fill, revision
from tests.history import FOLDER
from tests.sim import World, digests, request


class Golden(Struct, frozen=True):
    """What is in a store, and two jobs of it that an engine goes on with."""

    path: Path
    streams: int
    events: int
    half_done: str
    waiting: str


GOLDENS = (
    Golden(FOLDER / "schema-0001.db", streams=6, events=82, half_done="job-0004", waiting="job-0005"),
    Golden(FOLDER / "schema-0002.db", streams=6, events=96, half_done="job-0004", waiting="job-0006"),
)


@pytest.fixture(params=["sqlite", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture(params=GOLDENS, ids=lambda golden: golden.path.stem)
def golden(request: pytest.FixtureRequest) -> Golden:
    golden: Golden = request.param
    return golden


@pytest.fixture
def url(request: pytest.FixtureRequest, golden: Golden, kind: str, tmp_path: Path) -> str:
    if kind == "sqlite":
        return f"sqlite:///{shutil.copy(golden.path, tmp_path / 'store.db')}"
    new_database: Callable[[], str] = request.getfixturevalue("new_database")
    url = new_database()
    fill(url, golden.path)
    return url


def test_every_store_that_is_kept_is_tried() -> None:
    assert [golden.path for golden in GOLDENS] == sorted(FOLDER.glob("schema-*.db"))


async def test_a_store_of_an_older_schema_is_refused_until_it_is_upgraded(url: str, golden: Golden) -> None:
    refusal = pytest.raises(SchemaMismatch, match="engine-admin db upgrade")
    with refusal if revision(golden.path) < REVISION else nullcontext():
        async with open_journal(url):
            pass

    upgrade(url)

    async with open_journal(url):
        pass


async def test_in_an_old_store_all_is_there(url: str, golden: Golden) -> None:
    upgrade(url)

    async with open_journal(url) as journal:
        streams = await journal.streams("")
        assert len(streams) == golden.streams
        for stream in streams:
            assert broken(await journal.read(stream), await journal.load(stream)) is None
        report = await check(journal)
        assert report.events == golden.events
        assert [problem for problem in report.problems if "job list" not in problem] == []
        assert await journal.job_of_key("key-0") is not None


async def test_jobs_of_an_old_store_end_with_the_bits_of_new_ones(url: str, golden: Golden) -> None:
    upgrade(url)
    fresh = World()
    async with fresh.engine() as running:
        job = await running.ended((await running.client.submit(request(steps=60))).id)
        expected = digests(await running.client.checkpoints(job.id))

    async with open_journal(url) as journal, World(journal).engine() as running:
        waiting = await running.ended(golden.waiting)
        half_done = await running.ended(golden.half_done)

        assert waiting.state is half_done.state is State.COMPLETED
        assert digests(await running.client.checkpoints(half_done.id)) == expected
        ran = [unit.plan.step for unit in running.workers[0].ran if unit.id.job == half_done.id]
        assert ran.count(0) == 1  # that of its last node: what was done was not done again
