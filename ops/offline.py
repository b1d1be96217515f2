"""What an operator may do to a store while no engine runs: the engine's own code and its door, with no worker."""

import os
import random
import secrets
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import httpx

from api.app import build_app
from cards.wire import EngineMessage
from engine.client import Client
from engine.clock import Clock, WallClock
from engine.engine import Engine, EngineSettings
from engine.link import Arrived
from ops.models import families_of
from ops.remote import Remote
from ops.serve import new_id
from ops.settings import Settings
from ops.version import VERSION
from store.blobs import open_blobs
from store.open import open_journal


class NoWorkers:
    """A link that nobody is at the other end of."""

    async def send(self, worker: str, message: EngineMessage, frames: Sequence[bytes] = ()) -> bool:
        return False

    async def receive(self) -> Arrived:
        await anyio.sleep_forever()
        raise AssertionError("slept for ever")


@asynccontextmanager
async def offline(settings: Settings) -> AsyncIterator[Remote]:
    """An engine in this process that claims nothing and runs nothing, behind the door that all engines have.

    Raises StoreLocked if an engine holds the store after all.
    """
    clock = WallClock()
    async with open_journal(settings.store_url, writable=False):
        pass  # there is a store: the next line would make one
    async with open_journal(settings.store_url) as journal:
        engine = Engine(
            journal=journal,
            link=NoWorkers(),
            registry=families_of(settings),
            clock=clock,
            settings=EngineSettings(name=f"engine-admin-{socket.gethostname()}-{os.getpid()}"),
        )
        blobs = open_blobs(settings.blobs_url)
        client = Client(
            engine,
            journal,
            blobs,
            clock,
            ids=new_id,
            chance=random.SystemRandom(),
            retention=settings.retention,
        )
        app = build_app(client, version=VERSION, clock=clock, ids=lambda: secrets.token_hex(8))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.ledger.tell)
            if journal.shared:  # what is written is written under a lease
                await engine.renew()
                tasks.start_soon(_keep_lease, engine, clock)
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://here") as http:
                try:
                    yield Remote(http)
                finally:
                    await engine.lease.end()
            tasks.cancel_scope.cancel()


async def _keep_lease(engine: Engine, clock: Clock) -> None:
    while True:
        await clock.sleep(engine.lease.pause_s)
        await engine.renew()
