"""The engines of a store that are up, wherever they are, and how to reach them."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import httpx
from msgspec import Struct

from ops.remote import Remote, connect
from ops.settings import Settings
from ops.whereabouts import running_engine
from store.journal import Journal

LOOPBACK = ("127.0.0.1", "localhost", "::1")

ANSWER_S = 3.0


class LiveEngine(Struct, frozen=True):
    name: str
    url: str

    @property
    def elsewhere(self) -> bool:
        return urlsplit(self.url).hostname not in LOOPBACK


class Engines:
    """By name. Any of them takes any job; the one that has it need not take it from another first."""

    def __init__(self, remotes: Mapping[str, Remote]) -> None:
        self._remotes = remotes

    def owning(self, owner: str | None) -> Remote:
        return self._remotes.get(owner or "") or next(iter(self._remotes.values()))

    def all(self) -> Mapping[str, Remote]:
        return self._remotes


async def live_engines(settings: Settings, journal: Journal) -> list[LiveEngine]:
    """That of the data folder, and where engines share a store all whose leases run and whose URLs answer."""
    here = await anyio.to_thread.run_sync(running_engine, settings)
    found: dict[str, str] = {}
    leased = await journal.engines() if journal.shared else []
    async with anyio.create_task_group() as tasks:
        for row in leased:
            if row.left_s > 0 and row.url:
                tasks.start_soon(_look, LiveEngine(row.name, row.url), found)
    if here is not None:  # the nearer way to it, also where it is older and does not say its name
        found[await _name_at(here.url) or here.url] = here.url
    return [LiveEngine(name, url) for name, url in sorted(found.items())]


@asynccontextmanager
async def reached(engines: Sequence[LiveEngine]) -> AsyncIterator[Engines]:
    async with AsyncExitStack() as stack:
        connecting = {engine.name: connect(engine.url, elsewhere=engine.elsewhere) for engine in engines}
        yield Engines({name: await stack.enter_async_context(one) for name, one in connecting.items()})


async def _look(engine: LiveEngine, found: dict[str, str]) -> None:
    if await _name_at(engine.url) == engine.name:  # a loopback address may be that of another host's engine
        found[engine.name] = engine.url


async def _name_at(url: str) -> str | None:
    """The name of the engine that answers there, if one does."""
    try:
        async with httpx.AsyncClient(trust_env=urlsplit(url).hostname not in LOOPBACK, timeout=ANSWER_S) as http:
            name: str = (await http.get(f"{url}/livez")).raise_for_status().json()["engine"]
            return name
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
        return None
