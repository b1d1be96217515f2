"""`engine-admin` without a process, on a store with or without an engine that serves it."""

import contextlib
import io
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from sqlalchemy import NullPool, create_engine

from ops.admin.main import KNOWN, parse
from ops.cli import code_of, first
from ops.settings import Settings
from ops.whereabouts import Whereabouts, announced
from store.blobs import open_blobs
from store.journal import Journal
from store.open import open_journal
from tests.api.serving import app_of, served
from tests.sim import Running, World, request

NewSettings = Callable[[str, str], Settings]
"""Settings of a new store: its kind and the name of its folder."""


class Done(Struct):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code in (0, 1), self.err
        return msgspec.json.decode(self.out)


def settings_of(data: Path, store: str | None = None) -> Settings:
    return Settings(data=data, store=store, families=("tests.toy",))


async def admin(settings: Settings, *arguments: object) -> Done:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            parsed = parse(list(map(str, arguments)))
            code = await parsed.run(parsed, settings)
        except* SystemExit as ended:
            code = int(str(first(ended).code))  # type: ignore[attr-defined]
        except* KNOWN as known:
            error = first(known)
            code = code_of(error)
            err.write(f"error: {error}\n")
    return Done(code, out.getvalue(), err.getvalue())


def world_on(journal: Journal, settings: Settings) -> World:
    world = World(journal)
    world.blobs = open_blobs(settings.blobs_url)  # type: ignore[assignment]
    return world


@asynccontextmanager
async def engine(settings: Settings, **options: Any) -> AsyncIterator[Running]:
    """An engine that commands can find: by a file in its data folder, or by its lease where the store is shared."""
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with (
        open_journal(settings.store_url) as journal,
        world_on(journal, settings).engine(url=url, **options) as running,
        served(app_of(running), listener),
    ):
        if journal.shared:
            await running.until(lambda: running.engine.lease.held)
            yield running
        else:
            with announced(settings.data, Whereabouts(os.getpid(), url, settings.store_name)):
                yield running


def execute(settings: Settings, sql: str) -> int:
    """Do in the database what no command would do: how many rows it changed."""
    url = settings.store_url.replace("postgresql://", "postgresql+psycopg://")
    with create_engine(url, poolclass=NullPool).begin() as connection:
        return connection.exec_driver_sql(sql).rowcount


async def ended(running: Running, seed: int = 7, prompt: str = "a count", **fields: Any) -> str:
    return (await running.ended((await running.client.submit(request(prompt, seed=seed, **fields))).id)).id
