"""A worker process of a simulated world: the real inbox and executor, and two tasks in the place of its threads."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from random import Random

import anyio
import anyio.abc
from msgspec import Struct
from msgspec.structs import replace

from cards import codec, registry
from cards.codec import Parts
from cards.family import Family
from cards.wire import (
    Batch,
    EngineMessage,
    Goodbye,
    Heartbeat,
    Hello,
    Introduce,
    Refuse,
    Release,
    Released,
    Shutdown,
    WorkerMessage,
    WorkUnit,
)
from tests import toy
from tests.carrying import carry
from tests.simulation.link import Router, Wire
from tests.simulation.trace import Trace
from workers.execute import Executor
from workers.inbox import Command, Inbox
from workers.loaded import load_models
from workers.resident import BlobStore
from workers.transfer import PATIENCE_S, Lender
from workers.transfer_fetcher import Fetcher

BEAT_S = 1.0


class Build(Struct, frozen=True):
    """What a worker is made of."""

    families: tuple[Family, ...]
    blobs: BlobStore
    credits: int
    memory_bytes: int
    step_s: float
    fingerprints: tuple[str, ...]


class SimWorker:
    """`find` gives the router to connect to, or None while there is no engine; `peers` those that it can fetch from."""

    def __init__(
        self,
        name: str,
        pid: int,
        build: Build,
        find: Callable[[], Router | None],
        chance: Random,
        trace: Trace,
        peers: Callable[[], "Mapping[str, SimWorker]"],
        carrying: Random,
        serves: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.pid = pid
        self.executor = Executor(load_models({f.card.name: f for f in build.families}), build.blobs)
        self.wire: Wire | None = None
        self.how = ""
        """How it ended; empty as long as it lives."""
        self._build = build
        self._find = find
        self._chance = chance
        self._peers = peers
        self._carrying = carrying
        self._serves = serves
        self._tasks: anyio.abc.TaskGroup | None = None
        self._trace = trace
        self._fingerprint = chance.choice(build.fingerprints)
        self._inbox = Inbox()
        self._sent = self._received = 0
        self._outbox: deque[tuple[WorkerMessage, Sequence[bytes]]] = deque()
        self._post: deque[tuple[EngineMessage, Sequence[bytes]]] = deque()
        self._news = asyncio.Event()
        self._work = asyncio.Event()
        self._over = asyncio.Event()
        self._running = asyncio.Event()
        self._running.set()

    async def live(self) -> str:
        """Until it ends. Returns how."""
        self._trace(self.name, "starts")
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._link)
            tasks.start_soon(self._execute)
            await self._over.wait()
            tasks.cancel_scope.cancel()
        return self.how

    def end(self, how: str) -> None:
        """At once, as by SIGKILL: what has not left stays unsaid."""
        if not self.how:
            self._trace(self.name, f"ends: {how}")
            self.how = how
            self._over.set()
            if self.wire is not None:
                self.wire.close()

    def stop(self) -> None:
        """As by SIGTERM."""
        self._inbox.clear(Command(Shutdown()))
        self._work.set()

    def freeze(self, frozen: bool) -> None:
        self._trace(self.name, "is frozen" if frozen else "thaws")
        if frozen:
            self._running.clear()
        else:
            self._running.set()

    # -- the link's thread ----------------------------------------------------------------------------------------

    async def _link(self) -> None:
        self._tell(self._hello())
        beat_at = 0.0
        while True:
            await self._running.wait()
            self._connect()
            self._read_post()
            self._flush()
            if (now := asyncio.get_running_loop().time()) >= beat_at and not self._outbox:
                self._tell(self._beat())
                self._flush()
                beat_at = now + BEAT_S
            self._news.clear()
            with anyio.move_on_after(BEAT_S / 2 if self._outbox else max(beat_at - now, 0.01)):
                await self._news.wait()

    def _connect(self) -> None:
        if self.wire is not None and self.wire.alive:
            return
        router = self._find()
        self.wire = router.connect(self.name, self._arrived) if router is not None else None

    def _arrived(self, message: EngineMessage, frames: Sequence[bytes]) -> None:
        self._post.append((message, frames))
        self._news.set()

    def _read_post(self) -> None:
        while self._post:
            message, frames = self._post.popleft()
            self._received += 1
            match message:
                case Release():
                    self._inbox.release(message)
                case Introduce() | Shutdown():
                    self._inbox.clear(Command(message))
                case WorkUnit() | Batch():
                    self._put(Command(message, tuple(frames)))
                case Refuse(reason=reason):
                    self.end(f"refused: {reason}")
            self._work.set()

    def _flush(self) -> None:
        """What cannot leave now waits: the engine counts on every result."""
        while self.wire is not None and self.wire.alive and self._outbox:
            self.wire.tell(*self._outbox.popleft())

    def _tell(self, message: WorkerMessage, frames: Sequence[bytes] = ()) -> None:
        if self.how:
            return
        if isinstance(message, Hello):
            self._sent = self._received = 0
        else:
            self._sent += not isinstance(message, Heartbeat)
        self._outbox.append((message, frames))
        self._news.set()

    # -- the thread of transfers ----------------------------------------------------------------------------------

    def _put(self, command: Command) -> None:
        coming = [unit for unit in command.units if unit.fetch is not None]
        self._inbox.put(command, coming=[unit.id for unit in coming])
        for unit in coming:
            assert self._tasks is not None
            self._tasks.start_soon(self._fetch, unit)

    async def _fetch(self, unit: WorkUnit) -> None:
        """What the holder has, unless it is gone, frozen, or cannot be reached."""
        assert unit.fetch is not None
        await anyio.sleep(self._carrying.expovariate(1) * self._build.step_s)
        holder = self._peers().get(unit.fetch.address)
        fetcher, there = Fetcher(patience_s=0.0), {}
        if holder is not None and holder.lends and self._carrying.random() < 0.8:
            there[holder.name] = Lender(holder.find)
        else:
            await anyio.sleep(PATIENCE_S)
        fetcher.begin(unit.id, unit.fetch, 0.0)
        carry(fetcher, there)
        await self._running.wait()
        [brought] = fetcher.brought
        self._trace(self.name, f"fetches {len(brought.blobs)} of {len(unit.fetch.digests)}")
        self._inbox.arrived(brought.unit, brought.blobs)
        self._work.set()

    @property
    def lends(self) -> bool:
        return not self.how and self._running.is_set()

    def find(self, job: str, digest: str) -> Parts | None:
        tensor = self.executor.resident.find(job, digest)
        return codec.parts(tensor) if tensor is not None else None

    # -- the executor's thread ------------------------------------------------------------------------------------

    async def _execute(self) -> None:
        while True:
            self._work.clear()
            if (command := self._inbox.get_nowait()) is None:
                await self._work.wait()
            else:
                await self._obey(command)
            await self._running.wait()

    async def _obey(self, command: Command) -> None:
        match command.message:
            case WorkUnit() as unit:
                await self._steps(Batch((unit,)), command.frames)
            case Batch() as batch:
                await self._steps(batch, command.frames)
            case Release(job=job, epoch=epoch):
                self.executor.resident.release(job, epoch)
                self._tell(Released(job, epoch, command.dropped))
            case Introduce(number=number):
                self.executor.resident.clear()
                self._tell(self._hello(number))
            case Shutdown():
                await self._leave("told to stop", clean=True)

    async def _steps(self, batch: Batch, frames: Sequence[bytes]) -> None:
        began = asyncio.get_running_loop().time()
        await anyio.sleep(self._chance.expovariate(1) * self._build.step_s)
        await self._running.wait()
        try:
            answers = self.executor.run_batch(batch, frames)
        except toy.Died:
            await self._die()
            return
        seconds = asyncio.get_running_loop().time() - began
        for answer in answers:
            timed = replace(answer.result, seconds=seconds / len(answers), batch_seconds=seconds)
            self._tell(timed, answer.frames)

    async def _die(self) -> None:
        if self._chance.random() < 0.5:
            await self._leave("Died: ", clean=False)
        else:
            self.end("was killed by signal 9")

    async def _leave(self, reason: str, *, clean: bool) -> None:
        self._tell(Goodbye(reason, clean=clean))
        with anyio.move_on_after(1.0):
            while self._outbox:
                await anyio.sleep(0.05)
        self.end("exited with 0" if clean else "exited with 1")

    def _hello(self, answers: int = 0) -> Hello:
        return Hello(
            worker=self.name,
            pool="default",
            pid=self.pid,
            host="sim",
            ranks=1,
            credits=self._build.credits,
            memory_bytes=self._build.memory_bytes,
            models=tuple(registry.identity(family) for family in self._build.families),
            fingerprint=self._fingerprint,
            blobs=self._build.blobs.name,
            transfers=self.name,
            serves=self._serves,
            answers=answers,
        )

    def _beat(self) -> Heartbeat:
        held = self.executor.resident.held()
        return Heartbeat(self._inbox.units(), held.tensors, held.nbytes, self._sent, self._received)
