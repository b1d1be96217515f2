"""A long past for a store, put there by SQL: copies of a row that an append made."""

from collections.abc import Iterator

from anyio.to_thread import run_sync
from sqlalchemy import Connection, Table, text

from ops.bench.store.ours import step
from store import schema
from store.open import database_at, open_journal
from store.session import Session

TEMPLATE = "job/template"
BODY = bytes(100)
ROWS_AT_ONCE = 100_000

NUMBERS = """
WITH RECURSIVE numbers (i) AS (
    SELECT CAST(:first AS BIGINT) UNION ALL SELECT i + 1 FROM numbers WHERE i + 1 < CAST(:last AS BIGINT)
)
"""


async def fill(url: str, pasts: dict[str, tuple[int, int]]) -> None:
    """`{name: (jobs, events)}`: so many jobs `name0`, `name1`, ... with so many events each. The store is empty."""
    async with open_journal(url) as journal:
        await journal.append(step(TEMPLATE, 0, BODY))
    await run_sync(_fill, url, pasts)


def _fill(url: str, pasts: dict[str, tuple[int, int]]) -> None:
    database = database_at(url)
    session = Session(database)
    with database.hold():
        try:
            for name, (jobs, events) in pasts.items():
                for work in _works(name, jobs, events):
                    session.transact(work)
                    session.tidy(ROWS_AT_ONCE, 0)
        finally:
            session.close()


class _Copies:
    """Rows [first, last) of a table, by what differs from the template's."""

    def __init__(self, table: Table, differ: dict[str, str], name: str, events: int, first: int, last: int) -> None:
        others = [column.name for column in table.columns if column.name not in (*differ, "position")]
        chosen = [*differ.values(), *(f"template.{column}" for column in others)]
        self._sql = (
            f"{NUMBERS} INSERT INTO {table.name} ({', '.join([*differ, *others])}) SELECT {', '.join(chosen)}"
            f" FROM numbers CROSS JOIN {table.name} AS template WHERE template.stream = '{TEMPLATE}'"
        )
        self._values = {"name": name, "events": events, "first": first, "last": last}

    def __call__(self, connection: Connection) -> None:
        connection.execute(text(self._sql), self._values)


def _works(name: str, jobs: int, events: int) -> Iterator[_Copies]:
    head = {"stream": "CAST(:name AS TEXT) || i", "version": "CAST(:events AS BIGINT)"}
    yield _Copies(schema.streams, head, name, events, 0, jobs)
    event = {
        "stream": "CAST(:name AS TEXT) || (i / CAST(:events AS BIGINT))",
        "version": "i % CAST(:events AS BIGINT) + 1",
    }
    for first in range(0, jobs * events, ROWS_AT_ONCE):
        yield _Copies(schema.events, event, name, events, first, min(first + ROWS_AT_ONCE, jobs * events))
