"""All rows of a store as they are at one moment, and back into an empty store, of either kind.

Leases are not among them: they are of engines that work on this very store.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from msgspec import Struct
from sqlalchemy import Connection, CursorResult, Table, insert, inspect, select, text
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError, StatementError

from store.blobs import verified
from store.chain import Chain
from store.errors import CorruptBlob, DamagedDump, SchemaMismatch, StoreNotEmpty
from store.journal import Event, Loaded
from store.metadata import columns, metadata_of
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
            yield from _pages(self._connection, name, table)


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


def fill(
    url: str, pages: Iterable[Page], *, revision: str, position: int, broken: Mapping[str, str] | None = None
) -> None:
    """Everything or nothing: what is not sound, is not there afterwards.

    `broken` is what was so when the dump was made already: it is filled in as it was. The store is made at
    the dump's revision and then brought up to this code's. Raises StoreNotEmpty, DamagedDump,
    SchemaMismatch, StoreLocked, StoreUnavailable.
    """
    database = database_at(url)
    session = Session(database)

    def work(connection: Connection) -> None:
        _make_empty(connection, revision)
        for page in pages:
            rows = [dict(zip(page.columns, row, strict=True)) for row in page.rows]
            with _damaged_if_not_taken(page.table):
                connection.execute(insert(TABLES[page.table]), rows)
        _go_on_after(connection, position)
        migrate(connection)
        _verify(connection, broken or {})

    with database.hold():
        try:
            session.transact(work)
        finally:
            session.close()


@contextmanager
def _damaged_if_not_taken(table: str) -> Iterator[None]:
    """SQLite keeps whatever type somebody puts into a column; no store is filled with such a row."""
    try:
        yield
    except StatementError as error:
        if isinstance(error, DBAPIError) and not isinstance(error, DataError | IntegrityError | ProgrammingError):
            raise
        raise DamagedDump(f"{table}: a row is of other types than it was written with: {error.orig}") from error


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


class Soundness:
    """Every chain and every inline blob, looked at page by page."""

    def __init__(self) -> None:
        self._heads: dict[str, Loaded] = {}
        self._chains: defaultdict[str, Chain] = defaultdict(Chain)
        self._blobs: dict[str, str] = {}

    def follow(self, page: Page) -> None:
        if page.table == streams.name:
            for stream, version, epoch, hash in page.rows:
                self._heads[stream] = Loaded(version, epoch, None, (), hash)
        elif page.table == events.name:
            for row in page.rows:
                event = Event(*row)
                self._chains[event.stream].follow(event)
        elif page.table == blobs.name:
            for digest, _, data, *_ in page.rows:
                self._look(digest, data)

    def problems(self) -> dict[str, str]:
        """What is wrong with each stream and blob that is not sound, in words."""
        problems = dict(self._blobs)
        for stream in dict.fromkeys([*self._heads, *self._chains]):
            head, chain = self._heads.get(stream), self._chains.get(stream, Chain())
            if (head is None or head.version != GONE) and (problem := chain.broken(head)):
                problems[stream] = problem
        return problems

    def _look(self, digest: str, data: bytes) -> None:
        try:
            verified(digest, data)
        except CorruptBlob:
            self._blobs[f"blob {digest}"] = "its bytes do not hash to its name"


def _verify(connection: Connection, known: Mapping[str, str]) -> None:
    """Everything as it has come to lie in the store. Raises DamagedDump."""
    soundness = Soundness()
    for table in (streams, events, blobs):
        for page in _pages(connection, str(table.name), table):
            soundness.follow(page)
    for what, problem in soundness.problems().items():
        if known.get(what) != problem:
            raise DamagedDump(f"{what}: {problem}")


def _pages(connection: Connection, name: str, table: Table) -> Iterator[Page]:
    with _all(connection, table) as found:
        names = tuple(map(str, found.keys()))
        for rows in found.partitions():
            plain = [tuple(row) for row in rows]
            if table is jobs:
                plain = [(*row[:-1], metadata_of(row[-1])) for row in plain]
            yield Page(name, names, plain)


def _all(connection: Connection, table: Table) -> CursorResult[*tuple[Any, ...]]:
    question = select(*columns(table)).order_by(*table.primary_key)
    return connection.execute(question, execution_options={"yield_per": ROWS_AT_ONCE})
