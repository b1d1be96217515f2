"""What an operator may do to a store while no engine runs: the same engine code, with no worker to run anything."""

import random
from collections.abc import Sequence

import anyio

from cards import registry
from cards.wire import EngineMessage
from engine.cancel import Outcome
from engine.client import Client
from engine.clock import WallClock
from engine.engine import Engine, EngineSettings
from engine.link import Arrived
from ops.settings import Settings
from store.blobs import open_blobs
from store.open import open_journal


class NoWorkers:
    """A link that nobody is at the other end of."""

    async def send(self, worker: str, message: EngineMessage, frames: Sequence[bytes] = ()) -> bool:
        return False

    async def receive(self) -> Arrived:
        await anyio.sleep_forever()
        raise AssertionError("slept for ever")


async def cancel_offline(settings: Settings, job: str) -> Outcome:
    """Raises JobNotFound, StoreLocked."""
    clock = WallClock()
    async with open_journal(settings.store_url, writable=False):
        pass  # there is a store: the next line would make one
    async with open_journal(settings.store_url) as journal:
        engine = Engine(
            journal=journal,
            link=NoWorkers(),
            registry=registry.load(settings.families),
            clock=clock,
            settings=EngineSettings(name="engine-admin"),
        )
        client = Client(engine, journal, open_blobs(settings.blobs_url), clock, ids=str, chance=random.Random())
        await client.job(job)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.ledger.tell)
            outcome = await client.cancel(job)
            tasks.cancel_scope.cancel()
        return outcome
