"""What the contract tests of journals may ask for."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from store.journal import Journal
from store.open import open_journal


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
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
