"""Stores that the tests of commands may ask for."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ops.settings import Settings
from tests.ops.admin import NewSettings, settings_of


@pytest.fixture
def new(request: pytest.FixtureRequest, tmp_path: Path) -> NewSettings:
    """Settings of a new folder and a new store of a kind."""

    def new(kind: str, folder: str) -> Settings:
        (tmp_path / folder).mkdir()
        if kind == "sqlite":
            return settings_of(tmp_path / folder)
        new_database: Callable[[], str] = request.getfixturevalue("new_database")
        return settings_of(tmp_path / folder, new_database())

    return new


@pytest.fixture(params=["sqlite", "postgres"])
def settings(request: pytest.FixtureRequest, new: NewSettings) -> Settings:
    return new(request.param, "store")
