"""What all tests may ask for."""

import logging
from collections.abc import Callable, Iterator

import pytest

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
