"""Which stores can be opened: by their URL and by the revision of their schema."""

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Float, NullPool, create_engine, literal_column, text

import migrations
from store.errors import BadStoreUrl, SchemaMismatch, StoreLocked, StoreUnavailable
from store.journal import JobFilter
from store.open import open_journal, revisions, upgrade
from store.reads import claimable, job_rows
from store.schema import REVISION, metadata
from tests.store.appender import STREAM, step


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    new_database: Callable[[], str] = request.getfixturevalue("new_database")
    return new_database()


def set_revision(url: str, revision: str, requires: str = REVISION) -> None:
    execute(url, f"UPDATE alembic_version SET version_num = '{revision}'")
    execute(url, f"UPDATE compatibility SET requires = '{requires}'")


def execute(url: str, statement: str) -> None:
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text(statement))


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


# URLs


@pytest.mark.parametrize("url", ["", "store.db", "mysql://host/db", "sqlite://", "postgresql://host", "memory:", "://"])
async def test_a_url_that_names_no_store_is_answered_with_those_that_do(url: str) -> None:
    with pytest.raises(BadStoreUrl, match=r"sqlite:///PATH, postgresql://USER@HOST/DATABASE or memory://"):
        async with open_journal(url):
            pass


async def test_a_password_is_not_repeated() -> None:
    with pytest.raises(BadStoreUrl) as caught:
        async with open_journal("mysql://me:secret@host/db"):
            pass

    assert "secret" not in str(caught.value)


async def test_a_folder_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"nowhere.*No such file or directory"):
        async with open_journal(f"sqlite:///{tmp_path}/nowhere/store.db"):
            pass


async def test_looking_into_a_store_that_is_not_there_makes_none(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="there is no store"):
        async with open_journal(f"sqlite:///{tmp_path}/store.db", writable=False):
            pass

    assert names(tmp_path) == []


async def test_a_path_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async with open_journal("sqlite:///store.db"):
        assert (tmp_path / "store.db").is_file()


# Revisions


async def test_looking_into_an_empty_store_is_refused_with_the_remedy(url: str) -> None:
    if url.startswith("sqlite"):
        sqlite3.connect(url.removeprefix("sqlite:///")).close()

    with pytest.raises(SchemaMismatch, match=r"the store is empty, .* run `engine-admin db upgrade`"):
        async with open_journal(url, writable=False):
            pass


async def test_an_empty_store_gets_its_tables(url: str) -> None:
    async with open_journal(url):
        assert revisions(url) == (REVISION, REVISION)


async def test_a_newer_store_that_asks_for_newer_code_is_refused_and_left_alone(url: str) -> None:
    upgrade(url)
    set_revision(url, "9999", requires="9998")

    for writable in (True, False):
        with pytest.raises(SchemaMismatch, match=f"takes engines from 9998 on; this one is of {REVISION}: upgrade"):
            async with open_journal(url, writable=writable):
                pass
    with pytest.raises(SchemaMismatch, match="9999"):
        upgrade(url)
    assert revisions(url) == ("9999", REVISION)


async def test_a_newer_store_that_only_adds_is_worked_on_while_a_deploy_rolls(url: str) -> None:
    async with open_journal(url) as journal:
        await journal.append(step(0))
        await journal.end_lease("nobody")
    execute(url, "ALTER TABLE events ADD COLUMN colour TEXT")  # as a migration would that expands
    execute(url, "ALTER TABLE jobs ADD COLUMN region TEXT DEFAULT 'none'")
    set_revision(url, "9999", requires=REVISION)

    upgrade(url)  # which is not a step back
    async with open_journal(url) as journal:
        assert (await journal.append(step(1))).version == 2
        assert len(await journal.read(STREAM)) == 2

    assert revisions(url) == ("9999", REVISION)


async def test_an_older_store_is_refused_with_the_remedy(url: str) -> None:
    upgrade(url)
    set_revision(url, "0000")

    for writable in (True, False):
        with pytest.raises(SchemaMismatch, match=r"at revision 0000.*engine-admin db upgrade"):
            async with open_journal(url, writable=writable):
                pass


async def test_a_file_in_use_is_not_upgraded(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    async with open_journal(url):
        with pytest.raises(StoreLocked):
            upgrade(url)


def test_the_migrations_make_what_the_code_reads(url: str) -> None:
    upgrade(url)

    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool)
    with engine.connect() as connection:
        named = {"compare_type": True, "include_object": lambda thing, name, *_: name != "jobs_by_turn"}
        context = MigrationContext.configure(connection, opts=named)
        assert compare_metadata(context, metadata) == []


def test_the_next_jobs_are_found_without_sorting_all_that_are_open(tmp_path: Path) -> None:
    upgrade(f"sqlite:///{tmp_path}/store.db")
    engine = create_engine(f"sqlite:///{tmp_path}/store.db", poolclass=NullPool)
    now = literal_column("0.0", Float)

    for question in (job_rows(JobFilter(open=True), None, 10), claimable("engine", now, 10)):
        asked = question.compile(engine, compile_kwargs={"literal_binds": True})
        with engine.connect() as connection:
            plan = str(connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {asked}").all())

        assert "jobs_by_turn" in plan
        assert "TEMP B-TREE" not in plan


def test_the_code_is_written_for_the_last_migration() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))

    assert ScriptDirectory.from_config(config).get_current_head() == REVISION


def test_opening_a_store_that_is_up_to_date_does_not_wait_for_alembic(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    upgrade(url)
    script = f"""
import anyio, sys
from store.open import open_journal
async def main():
    async with open_journal({url!r}):
        assert "alembic" not in sys.modules
anyio.run(main)
"""

    subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2], check=True)
