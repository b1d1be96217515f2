"""Opening a store by its URL: the only place that knows which kinds there are."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
from anyio.to_thread import run_sync
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine

from store.database import POLL_S, RETRY_S, Database, Durability
from store.driver import DIALECTS
from store.errors import BadStoreUrl
from store.journal import Journal
from store.memory import MemoryJournal
from store.migrate import make_or_require_schema, migrate, require_schema, required, revision
from store.schema import REVISION
from store.session import Session, unavailable_when_refused
from store.sql import SqlJournal
from store.sqlite import Sqlite
from store.writer import QUEUE_APPENDS, Writer

MEMORY = "memory://"

FORMS = f"sqlite:///PATH, postgresql://USER@HOST/DATABASE or {MEMORY}"


@asynccontextmanager
async def open_journal(
    url: str,
    *,
    writable: bool = True,
    durability: Durability = "power",
    queue_appends: int = QUEUE_APPENDS,
    poll_s: float = POLL_S,
    retry_s: float = RETRY_S,
) -> AsyncIterator[Journal]:
    """A journal for as long as it is entered; an empty store gets its tables first.

    What is acknowledged survives a power cut; with the weaker `durability="process"` only the end of the process.
    More than `queue_appends` that wait are refused. What other engines write is looked for every `poll_s` in any case;
    a connection that broke, over which they would say so, is made anew after `retry_s`.

    One engine at a time may write to SQLite, any number to PostgreSQL. With `writable=False` the store is read beside a
    live engine, and appends raise StoreUnavailable. Raises BadStoreUrl, SchemaMismatch, StoreLocked, StoreUnavailable.
    """
    if url == MEMORY:
        yield MemoryJournal()
        return
    database = database_at(url, durability)
    async with AsyncExitStack() as stack:
        session = Session(database)
        bell = database.bell(poll_s=poll_s, retry_s=retry_s) if writable else None
        written = bell.ring if bell else _nobody_to_tell
        writer = Writer(session, asyncio.get_running_loop(), written, queue_appends=queue_appends)
        if writable:
            stack.enter_context(database.hold())
            stack.callback(session.close)
            await run_sync(session.transact, make_or_require_schema)
            await stack.enter_async_context(writer.run())
        else:
            await run_sync(_require_schema, database)
        reads = await stack.enter_async_context(_reading(database))
        if bell is not None:
            await stack.enter_async_context(bell.run())
        yield SqlJournal(database, writer, reads, bell)


def _nobody_to_tell() -> None:
    """There is no other engine."""


def upgrade(url: str) -> None:
    """Bring the store up to this code, while no engine holds it."""
    database = database_at(url)
    session = Session(database)
    with database.hold():
        try:
            session.transact(migrate)
        finally:
            session.close()


def revisions(url: str) -> tuple[str | None, str]:
    """The revision of the store (None if it is empty) and the one that this code is written for."""
    with unavailable_when_refused(), database_at(url).inspection().connect() as connection:
        return revision(connection), REVISION


def requirement(url: str) -> str | None:
    """The oldest revision whose code may work on the store; None if it does not say."""
    with unavailable_when_refused(), database_at(url).inspection().connect() as connection:
        return required(connection)


def database_time(url: str) -> float:
    """What the database's clock says, in seconds since 1970."""
    with unavailable_when_refused(), database_at(url).inspection().connect() as connection:
        now: float = connection.exec_driver_sql(f"SELECT {DIALECTS[connection.dialect.name].now}").scalar_one()
        return now


def database_at(url: str, durability: Durability = "power") -> Database:
    """Raises BadStoreUrl."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:  # a ValueError is a port that is no number
        raise BadStoreUrl(f"{url!r} names no store: write {FORMS}") from error
    match parsed.drivername:
        case "sqlite" if parsed.database:
            return Sqlite(Path(parsed.database).absolute(), durability)
        case "postgresql" if parsed.database:
            from store.postgres import Postgres  # its driver is a tenth of an engine's start, and for SQLite nothing

            return Postgres(parsed, durability)
    raise BadStoreUrl(f"{parsed.render_as_string()} names no store: write {FORMS}")


@asynccontextmanager
async def _reading(database: Database) -> AsyncIterator[AsyncEngine]:
    engine = database.reads()
    try:
        yield engine
    finally:
        with anyio.CancelScope(shield=True):  # connections have threads of their own: they end here or never
            await engine.dispose()


def _require_schema(database: Database) -> None:
    with unavailable_when_refused(), database.inspection().connect() as connection:
        require_schema(connection)
