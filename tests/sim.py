"""A world without processes: the real engine over a journal in memory and workers that are tasks.

The workers run the real executor on the real wire types; only the sockets and the processes are not there.
"""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
import anyio.abc
from msgspec import Struct

from cards import registry
from cards.family import Family
from cards.request import GenerationRequest
from cards.wire import EngineMessage, WorkerMessage
from engine.client import Client
from engine.clock import Clock, WallClock
from engine.engine import Engine, EngineSettings
from engine.intake import Aside
from engine.job import Job, State
from engine.link import Arrived
from engine.views import StepTensors
from ops.blobs import WorkerBlobs
from store.blobs import MemoryBlobs
from store.journal import Journal
from store.memory import MemoryJournal
from tests import toy
from tests.sim_worker import SimWorker

T = TypeVar("T")


class SimClock:
    """Time that stands still until a test moves it."""

    def __init__(self) -> None:
        self.time = 1_000.0
        self._moved = asyncio.Event()

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        until = self.time + seconds
        while self.time < until:
            await self._moved.wait()

    def advance(self, seconds: float) -> None:
        self.time += seconds
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()


class SimLink:
    """The wire between an engine and the workers of a world."""

    def __init__(self) -> None:
        self.workers: dict[str, SimWorker] = {}
        self.inbox: asyncio.Queue[Arrived] = asyncio.Queue()

    async def send(self, worker: str, message: EngineMessage, frames: Sequence[bytes] = ()) -> bool:
        there = self.workers.get(worker)
        if there is None:
            return False
        if not there.dead:  # a dead peer is noticed later, as on a real wire
            there.deliver(message, frames)
        return True

    async def receive(self) -> Arrived:
        return await self.inbox.get()

    def tell(self, worker: str, message: WorkerMessage, frames: Sequence[bytes] = ()) -> None:
        self.inbox.put_nowait(Arrived(worker, message, tuple(frames)))


class Running(Struct):
    """An engine that runs, with what a test may want of it."""

    engine: Engine
    client: Client
    link: SimLink
    tasks: anyio.abc.TaskGroup
    workers: list[SimWorker]
    world: "World"

    def add_worker(self, **options: Any) -> None:
        worker = self.world.worker(**options)
        worker.peers = self.link.workers
        self.workers.append(worker)
        self.link.workers[worker.name] = worker
        self.tasks.start_soon(worker.run, self.link.tell)

    async def ended(self, job_id: str, within_s: float = 30.0) -> Job:
        """The job, once it has ended."""
        with anyio.fail_after(within_s):
            async for _ in self.client.watch(job_id):
                pass
        return await self.client.job(job_id)

    async def until(self, happened: Callable[[], bool], within_s: float = 30.0) -> None:
        with anyio.fail_after(within_s):
            while not happened():
                await anyio.sleep(0.001)


async def at_once(work: Callable[[], T], /) -> T:
    """In place of a thread, which runs when it likes."""
    return work()


class World:
    """What outlives an engine: the journal and the blobs."""

    def __init__(
        self,
        journal: Journal | None = None,
        families: Sequence[Family] = (toy.FAMILY,),
        clock: Clock | None = None,
        extensions: Sequence[str] = (),
    ) -> None:
        self.extensions = extensions
        self.aside: Aside = at_once
        self.journal: Journal = journal or MemoryJournal()
        self.blobs = MemoryBlobs()
        self.families = families
        self.unusable: dict[str, str] = {}
        """Models that are registered and cannot be opened, and why."""
        self.clock: Clock = clock or WallClock()
        self._ids = itertools.count(1)
        self._names = itertools.count(1)

    def number_jobs_from(self, first: int) -> None:
        """For a journal that has jobs of another world."""
        self._ids = itertools.count(first)

    def worker(
        self,
        *,
        credits: int = 2,
        fingerprint: str = "sim",
        pool: str = "default",
        serves: tuple[str, ...] = (),
        weights_bytes: int | None = None,
        memory_bytes: int = 1 << 30,
    ) -> SimWorker:
        name = f"worker-{next(self._names)}"
        blobs = WorkerBlobs(self.blobs)
        return SimWorker(
            name,
            self.families,
            blobs,
            credits=credits,
            fingerprint=fingerprint,
            pool=pool,
            extensions=self.extensions,
            serves=serves,
            weights_bytes=weights_bytes,
            memory_bytes=memory_bytes,
        )

    @asynccontextmanager
    async def engine(
        self, *, workers: int = 1, journal: Journal | None = None, **settings: Any
    ) -> AsyncIterator[Running]:
        """An engine that ends without a word when the block does, as a killed one would."""
        link = SimLink()
        journal = journal or self.journal
        settings = {"name": "engine", "reconcile_s": 0.02, "watch_s": 0.02} | settings
        engine = Engine(
            journal=journal,
            link=link,
            registry=registry.Registry({family.card.name: family for family in self.families}, self.unusable),
            clock=self.clock,
            settings=EngineSettings(blobs=self.blobs.name, **settings),
        )
        client = Client(
            engine,
            journal,
            self.blobs,
            self.clock,
            ids=lambda: f"job-{next(self._ids):04d}",
            chance=random.Random(7),
            aside=self.aside,
        )
        async with anyio.create_task_group() as tasks:
            running = Running(engine=engine, client=client, link=link, tasks=tasks, workers=[], world=self)
            tasks.start_soon(engine.run)
            for _ in range(workers):
                running.add_worker()
            yield running
            tasks.cancel_scope.cancel()


def request(prompt: str = "a count", *, steps: int = 4, seed: int = 7, **fields: Any) -> GenerationRequest:
    return GenerationRequest(model="toy", prompt=prompt, steps=steps, seed=seed, **fields)


def digests(steps: Sequence[StepTensors]) -> list[tuple[str, int, dict[str, str]]]:
    return [(step.loop, step.step, {name: ref.digest for name, ref in step.tensors.items()}) for step in steps]


async def assert_unharmed(running: Running) -> None:
    """The next job runs, and everything that was held has been given back."""
    job = await running.ended((await running.client.submit(request(seed=99))).id)
    assert job.state is State.COMPLETED
    await running.until(lambda: all(not worker.executor.resident.held().tensors for worker in running.workers))
    statistics = running.client.statistics()
    assert statistics.outstanding_units == statistics.reserved_bytes == statistics.ready_steps == 0
    assert statistics.free_credits == 2 * statistics.workers
