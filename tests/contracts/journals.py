"""What tests write into journals, and what they do behind a journal's back."""

from contextlib import AbstractContextManager

import pytest
from blake3 import blake3
from msgspec.structs import replace
from sqlalchemy import Connection, NullPool, create_engine, text

from store.journal import Append, Blob, Event, IdempotencyKey, JobRow, Journal, NewEvent

ON_SQL = pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)


def write(
    stream: str,
    expected: int,
    *bodies: bytes,
    epoch: int = 0,
    claim: bool = False,
    checkpoint: bytes | None = None,
    blobs: tuple[Blob, ...] = (),
    row: JobRow | None = None,
    key: IdempotencyKey | None = None,
) -> Append:
    return Append(
        stream=stream,
        expected=expected,
        epoch=epoch,
        at=1.5,
        events=tuple(NewEvent("happened", body) for body in bodies),
        claim=claim,
        checkpoint=checkpoint,
        blobs=blobs,
        row=row,
        key=key,
    )


def job(id: str, *, status: str = "queued", priority: int = 0, at: float = 0.0, open: bool = True) -> JobRow:
    return JobRow(
        id=id, status=status, model="shapes", priority=priority, submitted_at=at, updated_at=at + 1, open=open
    )


def blob(data: bytes) -> Blob:
    return Blob(digest=blake3(data).hexdigest(), data=data)


def change(url: str, statement: str) -> None:
    """Do behind the journal's back what it would never do."""
    with connected(url) as connection:
        connection.execute(text(statement))


def connected(url: str) -> AbstractContextManager[Connection]:
    """A transaction of another program."""
    return create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool).begin()


def bodies(events: list[Event] | tuple[Event, ...]) -> list[bytes]:
    return [event.body for event in events]


def unhashed(events: list[Event]) -> list[Event]:
    return [replace(event, hash=b"") for event in events]


async def whole_log(journal: Journal) -> list[Event]:
    return await journal.read_all(limit=100_000)
