"""What all tests may ask for."""

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from store.journal import Journal
from store.open import open_journal
from tests.postgres import running_postgres
from tests.s3 import s3_server


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def logs_go_where_they_went() -> Iterator[None]:
    """A command that is run in this process has logs go to its own streams, which are gone after its test."""
    root = logging.getLogger()
    handlers, level = [*root.handlers], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(scope="session")
def new_database() -> Iterator[Callable[[], str]]:
    """Makes an empty PostgreSQL database and returns its URL."""
    with running_postgres() as new:
        yield new


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """Where an S3 service listens."""
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store of each kind."""
    match request.param:
        case "sqlite":
            return f"sqlite:///{tmp_path}/store.db"
        case "postgres":
            new_database: Callable[[], str] = request.getfixturevalue("new_database")
            return new_database()
    return "memory://"


@pytest.fixture
async def journal(url: str) -> AsyncIterator[Journal]:
    async with open_journal(url) as journal:
        yield journal
