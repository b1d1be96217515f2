"""An engine that runs, and a client of its app."""

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.api.serving import app_of, without_sockets
from tests.sim import Running, World


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with World().engine() as running:
        yield running


@pytest.fixture
async def idle() -> AsyncIterator[Running]:
    """An engine without workers: what is submitted stays."""
    async with World().engine(workers=0) as running:
        yield running


@pytest.fixture
async def http(running: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with without_sockets(app_of(running)) as client:
        yield client


@pytest.fixture
async def http_idle(idle: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with without_sockets(app_of(idle)) as client:
        yield client
