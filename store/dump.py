"""All rows of a store as they are at one moment, and back into an empty store, of either kind.

Leases are not among them: they are of engines that work on this very store.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import Struct
from sqlalchemy import Connection, CursorResult, Table, insert, inspect, select, text

from store.blobs import digest_of
from store.chain import Chain
from store.errors import DamagedDump, SchemaMismatch, StoreNotEmpty
from store.journal import Event, Loaded
from store.migrate import migrate, revision
from store.open import database_at
from store.schema import REVISION, blobs, checkpoints, events, idempotency, jobs, streams
from store.session import Session, unavailable_when_refused
from store.upkeep import GONE

TABLES: dict[str, Table] = {
    str(table.name): table for table in (streams, events, checkpoints, blobs, idempotency, jobs)
}  # fmt: skip

ROWS_AT_ONCE = 200

LAST_GIVEN_OUT = {
    "sqlite": "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'events'",
    "postgresql": "SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence('events', 'position')::regclass), 0)",
}

GO_ON_AFTER = {
    "sqlite": "UPDATE sqlite_sequence SET seq = :position WHERE name = 'events'",
    "postgresql": "SELECT setval(pg_get_serial_sequence('events', 'position'), :position)",
}


class Page(Struct, frozen=True):
    """Some rows of a table, each with its values in the order of the columns."""

    table: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]


class Snapshot:
    """A store at one moment. `position` is the last that it has given out: events of that and before may be gone."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.revision = REVISION
        self.position: int = connection.scalar(text(LAST_GIVEN_OUT[connection.dialect.name])) or 0

    def pages(self) -> Iterator[Page]:
        for name, table in TABLES.items():
            with _all(self._connection, table) as found:
                for rows in found.partitions():
                    yield Page(name, tuple(map(str, found.keys())), [tuple(row) for row in rows])


@contextmanager
def snapshot(url: str) -> Iterator[Snapshot]:
    """Beside engines at work, which do not wait for it. Raises SchemaMismatch, StoreUnavailable."""
    with unavailable_when_refused(), database_at(url).snapshot() as connection:
        if (found := revision(connection)) != REVISION:
            raise SchemaMismatch(
                f"the store is at revision {found}, this code at {REVISION}: use the code of the store's revision, "
                "or run `engine-admin db upgrade` first"
            )
        yield Snapshot(connection)


def fill(url: str, pages: Iterable[Page], *, revision: str, position: int) -> None:
    """Everything or nothing: what is not sound, is not there afterwards.

    The store is made at the dump's revision and then brought up to this code's. Raises StoreNotEmpty, DamagedDump,
    SchemaMismatch, StoreLocked, StoreUnavailable.
    """
    database = database_at(url)
    session = Session(database)

    def work(connection: Connection) -> None:
        _make_empty(connection, revision)
        for page in pages:
            rows = [dict(zip(page.columns, row, strict=True)) for row in page.rows]
            connection.execute(insert(TABLES[page.table]), rows)
        _go_on_after(connection, position)
        migrate(connection)
        _verify(connection)

    with database.hold():
        try:
            session.transact(work)
        finally:
            session.close()


def _make_empty(connection: Connection, wanted: str) -> None:
    there = revision(connection)
    if wanted > REVISION:
        raise SchemaMismatch(f"the dump is of revision {wanted}, this code of {REVISION}: use newer code")
    if there is None:
        migrate(connection, wanted)
    elif there != wanted:
        raise SchemaMismatch(f"the store is at revision {there}, the dump of {wanted}: take a store without tables")
    for name, table in TABLES.items():
        if inspect(connection).has_table(name) and connection.execute(select(table).limit(1)).first() is not None:
            raise StoreNotEmpty(f"the store has {name} already: take an empty one")


def _go_on_after(connection: Connection, position: int) -> None:
    """No position is ever given out twice, not even that of an event which had gone before the dump."""
    if not position:
        return
    if connection.dialect.name == "sqlite" and not connection.scalar(text(LAST_GIVEN_OUT["sqlite"])):
        connection.exec_driver_sql("INSERT INTO sqlite_sequence (name, seq) VALUES ('events', 0)")
    connection.execute(text(GO_ON_AFTER[connection.dialect.name]), {"position": position})


def _verify(connection: Connection) -> None:
    """Every chain and every inline blob, as they have come to lie in the store. Raises DamagedDump."""
    chains = _chains(connection)
    for stream, head in _heads(connection).items():
        chain = chains.pop(stream, Chain())
        if head.version != GONE and (problem := chain.broken(head)):
            raise DamagedDump(f"{stream}: {problem}")
    for stream in chains:
        raise DamagedDump(f"{stream}: has events and no head")
    with _all(connection, blobs) as rows:
        for row in rows:
            if digest_of(row.data) != row.digest:
                raise DamagedDump(f"blob {row.digest}: its bytes do not hash to its name")


def _chains(connection: Connection) -> dict[str, Chain]:
    chains: defaultdict[str, Chain] = defaultdict(Chain)
    with _all(connection, events) as rows:
        for row in rows:
            chains[row.stream].follow(Event(*row))
    return chains


def _heads(connection: Connection) -> dict[str, Loaded]:
    with _all(connection, streams) as rows:
        return {stream: Loaded(version, epoch, None, (), hash) for stream, version, epoch, hash in rows}


def _all(connection: Connection, table: Table) -> CursorResult[*tuple[Any, ...]]:
    question = select(table).order_by(*table.primary_key)
    return connection.execute(question, execution_options={"yield_per": ROWS_AT_ONCE})
