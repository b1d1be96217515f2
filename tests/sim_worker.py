"""A worker without a process: the real inbox and the real executor, and neither sockets nor threads."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import anyio
import anyio.lowlevel
from msgspec.structs import replace

from cards import codec, registry
from cards.codec import Parts
from cards.family import Family
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
        memory_bytes: int = 1 << 30,
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
        self._memory_bytes = memory_bytes
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
            memory_bytes=self._memory_bytes,
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
                if command.fetched:
                    self._beat(tell, command)
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
                self.executor.resident.release(job, epoch)
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

    def _beat(self, tell: Tell, running: Command | None = None) -> None:
        units = tuple(unit.id for unit in running.units) if running is not None else ()
        beat = heartbeat(self.executor, self._inbox.units(), running=units)
        tell(self.name, replace(beat, fetched=self.fetcher.fetched), ())
