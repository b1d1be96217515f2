"""A machine of a simulated world: one engine after another on the one store, and the workers that belong to it."""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.abc

from cards.registry import Registry
from cards.roles import ROLES
from cards.wire import Hello
from engine.client import Client
from engine.engine import Engine
from engine.errors import EngineError
from tests.sim import at_once
from tests.simulation.disk import SimJournal
from tests.simulation.link import Router
from tests.simulation.worker import SimWorker

if TYPE_CHECKING:
    from tests.simulation.world import World

T = TypeVar("T")


class ConnectionLost(Exception):
    """The engine went away before it answered: what was asked may have happened or not."""


class SimClock:
    """Wall time that a fault can move; deadlines and sleeps go by the loop's time, which only grows."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.skew_s = 0.0

    def now(self) -> float:
        return 1_700_000_000.0 + self._loop.time() + self.skew_s

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)


class Process:
    """One life of an engine, with the handlers of those who ask it something."""

    def __init__(self, world: "World", host: "Host", name: str) -> None:
        self.name = name
        self.killed = False
        self._world = world
        self._answers: dict[asyncio.Future[object], None] = {}
        self._tasks: anyio.abc.TaskGroup | None = None
        self._task: asyncio.Task[None] | None = None
        self.journal: SimJournal = world.parts.journal(world.disk, name)
        self.router = Router(world.weather, world.chance("wires"), world.trace)
        self.engine: Engine = world.parts.engine(
            journal=self.journal,
            link=self.router,
            registry=Registry({world.parts.family.card.name: world.parts.family}),
            clock=host.clock,
            settings=world.settings(name),
            kill=host.kill_worker,
        )
        self.client: Client = world.parts.client(
            self.engine,
            self.journal,
            world.blobs,
            host.clock,
            ids=world.next_job_id,
            chance=random.Random(1),
            aside=at_once,
        )

    async def live(self) -> None:
        """Until it is killed or has drained. What it raises is a bug."""
        self._task = asyncio.current_task()
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                await self.engine.run()
                self._tasks = None
                tasks.cancel_scope.cancel()
        finally:
            self._cut()

    def kill(self) -> None:
        """At once, wherever its tasks are: from here on they change nothing outside."""
        if not self.killed and self._task is not None:
            self._world.trace(self.name, "is killed")
            self.killed = True
            self._cut()
            self._task.cancel()

    def drain(self, grace_s: float) -> None:
        if self._tasks is not None and not self.engine.draining:
            self._world.trace(self.name, "drains")
            self._tasks.start_soon(self.engine.drain, grace_s)

    def worker_ended(self, worker: SimWorker, how: str) -> None:
        """What the supervisor of a real engine learns from the operating system."""
        if self._tasks is not None:
            self._tasks.start_soon(self.engine.lose_process, "sim", worker.pid, how)

    async def call(self, ask: Callable[[Client], Awaitable[T]]) -> T:
        """What an HTTP request is: a task of the engine's, cancelled when its caller leaves. Raises ConnectionLost."""
        if self._tasks is None:
            raise ConnectionLost
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._answers[answer] = None  # type: ignore[index]
        scope = anyio.CancelScope()
        self._tasks.start_soon(self._handle, ask, answer, scope)
        try:
            return await answer
        finally:
            scope.cancel()
            self._answers.pop(answer, None)  # type: ignore[call-overload]

    async def _handle(
        self, ask: Callable[[Client], Awaitable[T]], answer: "asyncio.Future[T]", scope: anyio.CancelScope
    ) -> None:
        with scope:
            try:
                result = await ask(self.client)
            except EngineError as error:
                if not answer.done():
                    answer.set_exception(error)
            else:
                if not answer.done():
                    answer.set_result(result)

    def _cut(self) -> None:
        self._tasks = None
        self.journal.lose_power()
        self.router.close()
        for answer in self._answers:
            if not answer.done():
                answer.set_exception(ConnectionLost())


class Slot:
    """Keeps one worker alive. A child ends with its engine and is seen to end; others are found out to be gone."""

    def __init__(self, world: "World", host: "Host", number: int) -> None:
        self._world = world
        self._host = host
        self._chance = world.chance(f"slot {host.number} {number}")
        self._serves = (ROLES[number],) if world.parts.split else ()
        self._carrying = world.chance(f"transfers {host.number} {number}")
        self._names = (f"w{host.number}{number}.{life}" for life in itertools.count())
        self.child = self._chance.random() < 0.7
        self.keeps_its_name = self._chance.random() < 0.2
        self.worker = self._new(next(self._names))

    async def keep(self) -> None:
        while True:
            how = await self.worker.live()
            process = self._host.process
            if self.child and process is not None:
                await asyncio.sleep(self._chance.expovariate(50))
                process.worker_ended(self.worker, how)
            await asyncio.sleep(self._chance.uniform(0.05, 1.5))
            self.worker = self._new(self.worker.name if self.keeps_its_name else next(self._names))

    def _new(self, name: str) -> SimWorker:
        world = self._world
        host = self._host
        return SimWorker(
            name,
            world.next_pid(),
            world.build,
            host.router,
            self._chance,
            world.trace,
            host.workers,
            self._carrying,
            self._serves,
        )


class Host:
    """Starts an engine again whenever one has ended, until `retired`."""

    def __init__(self, world: "World", number: int, workers: int, chance: Random) -> None:
        self.number = number
        self.clock = SimClock(world.loop)
        self.process: Process | None = None
        self.retired = False
        self._world = world
        self._chance = chance
        self.slots = [Slot(world, self, n) for n in range(workers)]

    async def keep(self) -> None:
        for life in itertools.count():
            self.process = Process(self._world, self, f"engine-{self.number}.{life}")
            task = asyncio.get_running_loop().create_task(self.process.live())
            await asyncio.wait([task])
            self._world.engine_ended(self.process, None if task.cancelled() else task.exception())
            self.process = None
            self._end_children()
            await asyncio.sleep(self._chance.uniform(0.01, 2.0))
            if self.retired:
                return

    def workers(self) -> dict[str, SimWorker]:
        return {slot.worker.name: slot.worker for slot in self.slots}

    def router(self) -> Router | None:
        return self.process.router if self.process is not None and self.process.router.open else None

    def kill_worker(self, hello: Hello) -> None:
        """The engine gives a worker up; its process ends if it is the engine's own."""
        for slot in self.slots:
            if slot.child and slot.worker.pid == hello.pid:
                slot.worker.end("was killed by signal 9")

    def retire(self) -> None:
        """Its engine and workers are gone for good."""
        self.retired = True
        if self.process is not None:
            self.process.kill()

    def _end_children(self) -> None:
        for slot in self.slots:
            if slot.child:
                slot.worker.end("lost its parent")
