"""A world without processes: the real engine over a journal in memory and workers that are tasks.

The workers run the real executor on the real wire types; only the sockets and the processes are not there.
"""

import asyncio
import itertools
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
import anyio.abc
import anyio.lowlevel
from msgspec import Struct
from msgspec.structs import replace

from cards import codec, registry
from cards.codec import Parts
from cards.family import Family
from cards.request import GenerationRequest
from cards.wire import (
    Batch,
    EngineMessage,
    Goodbye,
    Hello,
    Introduce,
    Release,
    Released,
    Shutdown,
    Sleep,
    StepResult,
    Wake,
    WorkerMessage,
    WorkUnit,
)
from engine.client import Client, StepTensors
from engine.clock import Clock, WallClock
from engine.engine import Engine, EngineSettings
from engine.intake import Aside
from engine.job import Job, State
from engine.link import Arrived
from ops.blobs import WorkerBlobs
from store.blobs import MemoryBlobs
from store.errors import StoreUnavailable
from store.journal import Append, Appended, Journal
from store.memory import MemoryJournal
from tests import toy
from tests.carrying import carry
from workers.caches import BUDGETS, WEIGHTS, Caches
from workers.inbox import Command, Inbox
from workers.link import heartbeat
from workers.loaded import load_models
from workers.observed import executor
from workers.resident import BlobStore
from workers.transfer import Lender
from workers.transfer_fetcher import Fetcher


class Crash(BaseException):
    """The power goes out: no handler of errors may survive it."""


class QueuedJournal:
    """A journal whose appends reach the inner one later, one a turn of the event loop, as a disk would take them.

    `refuse` makes it answer the next so many with an error, as a full disk does. When `down` it takes nothing more:
    what was queued is lost with the power.
    """

    def __init__(self, inner: Journal) -> None:
        self._inner = inner
        self._queue: deque[tuple[Append, asyncio.Future[Appended]]] = deque()
        self.refuse = 0
        self.held = False
        self.down = False

    def append(self, append: Append) -> Awaitable[Appended]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Appended] = loop.create_future()
        self._queue.append((append, future))
        loop.call_soon(self._one)
        return future

    def release(self) -> None:
        """Go on after `held`."""
        self.held = False
        for _ in range(len(self._queue)):
            asyncio.get_running_loop().call_soon(self._one)

    def flush(self) -> None:
        """Everything that is queued is on disk now."""
        for append, _ in self._queue:
            self._inner.append(append)
        self._queue.clear()

    def _one(self) -> None:
        if self.down or self.held or not self._queue:
            return
        append, future = self._queue.popleft()
        if self.refuse:
            self.refuse -= 1
            future.set_exception(StoreUnavailable("the disk is full"))
        else:
            asyncio.ensure_future(self._inner.append(append)).add_done_callback(lambda done: _hand_on(done, future))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _hand_on(done: "asyncio.Future[Appended]", future: "asyncio.Future[Appended]") -> None:
    error = done.exception()
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())


class CrashingJournal:
    """Its `nth` append never returns: the power goes out, on disk is it only if `durable`.

    With it go the appends before it that the disk had not taken yet.
    """

    def __init__(self, inner: Journal, nth: int, *, durable: bool) -> None:
        self._disk = inner
        self._queue = QueuedJournal(inner)
        self.left = nth
        self._durable = durable

    def append(self, append: Append) -> Awaitable[Appended]:
        self.left -= 1
        if self.left > 0:
            return self._queue.append(append)
        if self.left == 0 and self._durable:
            self._queue.flush()
            self._disk.append(append)
        self._queue.down = True
        raise Crash

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


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


Tell = Callable[[str, WorkerMessage, Sequence[bytes]], None]


class SimWorker:
    """A worker as a task, with the real inbox and the real executor.

    `frozen` it neither works nor beats, as under SIGSTOP; `ran` lists the units that it executed, `answered` what came
    of them.
    """

    def __init__(
        self,
        name: str,
        families: Sequence[Family],
        blobs: BlobStore,
        *,
        credits: int,
        fingerprint: str,
        pool: str,
        extensions: Sequence[str] = (),
        serves: tuple[str, ...] = (),
        weights_bytes: int | None = None,
    ) -> None:
        self.name = name
        self.pool = pool
        self.frozen = False
        self.dead = False
        self.ran: list[WorkUnit] = []
        self.answered: list[StepResult] = []
        self.fetches: list[WorkUnit] = []
        """Those that were to be given something by another worker."""
        self.fingerprint = fingerprint
        self.gate: anyio.Event | None = None
        """While it is set to an event, a unit waits for it before it answers."""
        self.hold_at: int | None = None
        """The unit, counted from 1, at which the gate closes."""
        self.holds: Callable[[WorkUnit], bool] = lambda unit: False
        """Whether it closes at this one."""
        caches = Caches({**BUDGETS, WEIGHTS: weights_bytes})
        self.executor = executor(load_models({f.card.name: f for f in families}), blobs, extensions, caches=caches)
        self._blobs = blobs
        self._identities = tuple(registry.identity(family) for family in families)
        self._credits = credits
        self._inbox = Inbox()
        self.serves = serves
        self.peers: Mapping[str, SimWorker] = {}
        self.lends: Callable[[str, str], Parts | None] = self._parts
        """What it gives to others that ask; they hear nothing of a worker that is frozen or dead."""
        self.carries = True
        """Whether what others hold comes, or is on its way."""
        self.fetcher = Fetcher(patience_s=0.0)
        self._arrived = asyncio.Event()

    def hello(self) -> Hello:
        return Hello(
            worker=self.name,
            pool=self.pool,
            pid=0,
            host="sim",
            ranks=1,
            credits=self._credits,
            memory_bytes=1 << 30,
            models=self._identities,
            fingerprint=self.fingerprint,
            blobs=self._blobs.name,
            serves=self.serves,
            transfers=self.name,
        )

    def deliver(self, message: EngineMessage, frames: Sequence[bytes]) -> None:
        match message:
            case Release():
                self._inbox.release(message)
            case WorkUnit() | Batch():
                self._put(message, frames)
            case Sleep() | Wake():
                self._inbox.put(Command(message, tuple(frames)))
            case _:
                self._inbox.clear(Command(message))
        self._arrived.set()

    def _put(self, message: WorkUnit | Batch, frames: Sequence[bytes]) -> None:
        command = Command(message, tuple(frames))
        coming = [(unit, unit.fetch) for unit in command.units if unit.fetch is not None]
        self._inbox.put(command, coming=[unit.id for unit, _ in coming])
        for unit, fetch in coming:
            self.fetches.append(unit)
            self.fetcher.begin(unit.id, fetch, 0.0)

    def _carry(self) -> None:
        """Have what others hold brought."""
        if not self.carries:
            return
        there = {name: Lender(peer.lends) for name, peer in self.peers.items() if not (peer.frozen or peer.dead)}
        carry(self.fetcher, there)
        while self.fetcher.brought:
            brought = self.fetcher.brought.popleft()
            self._inbox.arrived(brought.unit, brought.blobs)

    def _parts(self, job: str, digest: str) -> Parts | None:
        tensor = self.executor.resident.find(job, digest)
        return codec.parts(tensor) if tensor is not None else None

    def open(self) -> None:
        """Let through what waits at the gate, and all that follows."""
        self.hold_at = None
        if self.gate is not None:
            self.gate.set()
            self.gate = None

    async def run(self, tell: Tell) -> None:
        tell(self.name, self.hello(), ())
        while not self.dead:
            self._arrived.clear()
            self._carry()
            if (command := self._inbox.get_nowait()) is not None:
                await self._thawed()
                await self._obey(command, tell)
                continue
            with anyio.move_on_after(0.2):
                await self._arrived.wait()
            await self._thawed()
            self._beat(tell)

    async def _thawed(self) -> None:
        while self.frozen:
            await anyio.sleep(0.001)

    async def _obey(self, command: Command, tell: Tell) -> None:
        match command.message:
            case WorkUnit() as unit:
                await self._steps(Batch((unit,)), command.frames, tell)
            case Batch() as batch:
                await self._steps(batch, command.frames, tell)
            case Release(job=job, epoch=epoch):
                self.executor.resident.release(job)
                tell(self.name, Released(job, epoch, command.dropped), ())
            case Introduce(number=number):
                self.executor.resident.clear()
                tell(self.name, replace(self.hello(), answers=number), ())
            case Sleep() | Wake() as told:
                self.executor.residency.obey(told)
                self._beat(tell)
            case Shutdown():
                tell(self.name, Goodbye("told to stop", clean=True), ())
                self.dead = True

    async def _steps(self, batch: Batch, frames: Sequence[bytes], tell: Tell) -> None:
        for unit in batch.units:
            self.ran.append(unit)
            if len(self.ran) == self.hold_at or self.holds(unit):
                self.gate = anyio.Event()
        try:
            answers = self.executor.run_batch(batch, frames)
        except toy.Died:
            self.dead = True
            return
        if self.gate is not None:
            await self.gate.wait()
        await anyio.lowlevel.checkpoint()
        await self._thawed()
        self._beat(tell)
        for answer in answers:
            self.answered.append(answer.result)
            tell(self.name, answer.result, answer.frames)
        self._beat(tell)

    def _beat(self, tell: Tell) -> None:
        tell(self.name, replace(heartbeat(self.executor, self._inbox.units()), fetched=self.fetcher.fetched), ())


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
