"""What all tests may ask for."""

from collections.abc import Callable, Iterator

import pytest

from tests.postgres import running_postgres
from tests.s3 import s3_server


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


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
