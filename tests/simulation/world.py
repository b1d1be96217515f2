"""One seed, from the first fault to the last check: everything in it is drawn from the seed, and nothing else is."""

import asyncio
import itertools
import logging
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import NoReturn, TypeVar

import anyio
from msgspec import Struct
from msgspec.structs import replace

from cards.family import Family
from cards.roles import ROLES
from engine.actor import restore
from engine.client import Client
from engine.engine import Engine, EngineSettings
from ops.blobs import WorkerBlobs
from store.journal import JobFilter, Journal
from store.memory import MemoryJournal
from tests import toy
from tests.simulation.callers import Caller, wishes
from tests.simulation.disk import Disk, SimBlobs, SimJournal
from tests.simulation.faults import mixed
from tests.simulation.host import ConnectionLost, Host, Process
from tests.simulation.link import Weather
from tests.simulation.loop import Endless, SimLoop, Stuck
from tests.simulation.oracle import Oracle
from tests.simulation.trace import Trace, TraceLog
from tests.simulation.worker import Build

T = TypeVar("T")

PATIENCE_S = 200.0
"""Virtual seconds without faults after which whatever has not ended never will."""


class Parts(Struct, frozen=True):
    """What a world is built of. A test of the simulator hands in one that is broken. The family is a kind of toy."""

    journal: Callable[[Disk, str], SimJournal] = SimJournal
    engine: Callable[..., Engine] = Engine
    client: Callable[..., Client] = Client
    store: Callable[..., Journal] = MemoryJournal
    family: Family = toy.FAMILY
    split: bool = False
    """Each worker is of one role, and there is one of each beside an engine."""


class Report(Struct, frozen=True):
    """What came of a seed. `digest` is of all that happened, `kinds` are the events that jobs had.

    `rest_s` is how long it took to come to rest once the faults had ended.
    """

    seed: int
    engines: int
    problems: tuple[str, ...]
    digest: str
    turns: int
    rest_s: float
    events: int
    kinds: frozenset[str]

    @property
    def again(self) -> str:
        """The command that repeats it."""
        return f"python -m tests.simulation --seed {self.seed} --engines {self.engines} --trace"


class World:
    """`engines` share the one store; each has workers of its own."""

    def __init__(
        self, seed: int, loop: SimLoop, *, engines: int, parts: Parts, show: Callable[[str], None] | None
    ) -> None:
        self.seed = seed
        self.healed_at = 0.0
        self.loop = loop
        self.parts = parts
        self.trace = Trace(loop, show)
        chance = self.chance("world")
        self.weather = Weather(usual_s=chance.choice([0.0002, 0.002, 0.03]))
        self.disk = Disk(self.chance("disk"), self.trace, parts.store(loop.time, shared=engines > 1))
        self.blobs = SimBlobs()
        self.oracle = Oracle(self.disk, self.trace, parts.family)
        self.build = Build(
            families=(parts.family,),
            blobs=WorkerBlobs(self.blobs),
            credits=chance.choice([1, 2, 4, 16]),
            memory_bytes=chance.choice([1, 3]) << 20,
            step_s=chance.choice([0.002, 0.02, 0.3, 2.0]),
            fingerprints=chance.choice([("one",), ("one", "other")]),
        )
        self._settings = EngineSettings(
            name="",
            blobs=self.blobs.name,
            max_active=chance.choice([1, 3, 64]),
            window=chance.choice([1, 2, 8]),
            silent_s=chance.choice([2.0, 5.0]),
            lease_s=chance.choice([2.0, 6.0]),
            cancel_grace_s=chance.choice([1.0, 10.0]),
        )
        self._ids = itertools.count(1)
        self._pids = itertools.count(100)
        self._route = self.chance("route")
        workers = [chance.randint(1, 3) for _ in range(engines)]
        if parts.split:
            workers = [len(ROLES)] * engines
        self.hosts = [Host(self, n, workers[n], self.chance(f"host {n}")) for n in range(engines)]

    def chance(self, name: str) -> Random:
        """A source of chance of its own, so that a fault more in one place moves nothing elsewhere."""
        return Random(f"{self.seed}/{name}")

    def settings(self, name: str) -> EngineSettings:
        return replace(self._settings, name=name)

    def next_job_id(self) -> str:
        return f"job-{next(self._ids):04d}"

    def next_pid(self) -> int:
        return next(self._pids)

    async def call(self, ask: Callable[[Client], Awaitable[T]]) -> T:
        """Ask one of the engines. Raises ConnectionLost, and what the client raises."""
        process = self._route.choice(self.hosts).process
        if process is None:
            raise ConnectionLost
        return await process.call(ask)

    def engine_ended(self, process: Process, error: BaseException | None) -> None:
        if error is not None and not process.killed:
            self.oracle.wrong(f"{process.name} fell over: {''.join(traceback.format_exception(error, limit=-3))}")

    # -- its life -------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        async with anyio.create_task_group() as everyone:
            for host in self.hosts:
                everyone.start_soon(host.keep)
                for slot in host.slots:
                    everyone.start_soon(slot.keep)
            await self._chaos_and_callers()
            await self._come_to_rest()
            await self.oracle.final(self._held_up)
            for host in self.hosts:
                host.retire()
            await asyncio.sleep(1)
            everyone.cancel_scope.cancel()

    async def _chaos_and_callers(self) -> None:
        chance = self.chance("callers")
        chaos_s = chance.choice([3.0, 10.0, 20.0])
        with anyio.move_on_after(chaos_s + PATIENCE_S) as patience:
            async with anyio.create_task_group() as callers:
                for n, wish in enumerate(wishes(chance, chance.randint(1, 6), chaos_s)):
                    callers.start_soon(Caller(self, wish, self.chance(f"caller {n}")).live)
                with anyio.move_on_after(chaos_s):
                    await self._chaos()
                self._heal()
        if patience.cancelled_caught:
            self.oracle.wrong("someone still waits for an answer")

    async def _chaos(self) -> None:
        """A few kinds of faults, not all of them: a world in which everything fails at once never gets far."""
        chance = self.chance("faults")
        kinds = mixed(chance)
        pause_s = chance.choice([0.2, 1.0, 3.0])
        async with anyio.create_task_group() as faults:
            while kinds:
                await asyncio.sleep(chance.expovariate(1 / pause_s))
                fault = chance.choice(kinds)
                self.trace("fault", fault.__name__)
                faults.start_soon(fault, self, chance)

    def _heal(self) -> None:
        self.trace("fault", "no more")
        self.healed_at = self.loop.time()
        self.disk.heal()
        self.weather.heal()
        self.blobs.failing = False
        for slot in (slot for host in self.hosts for slot in host.slots):
            slot.worker.freeze(False)
            if slot.worker.wire is not None:
                slot.worker.wire.hold(False)

    async def _come_to_rest(self) -> None:
        restless: list[str] = ["it has not been looked at"]
        with anyio.move_on_after(PATIENCE_S):
            while restless:
                await asyncio.sleep(0.5)
                restless = await self._restless()
        for problem in restless:
            self.oracle.wrong(f"after {PATIENCE_S:g} s without faults: {problem}")

    async def _restless(self) -> list[str]:
        """What still goes on, or is still held."""
        open_jobs = [row.id for row in await self.disk.inner.jobs(JobFilter(open=True))]
        found = [f"{job} is open" for job in open_jobs if await self._held_up(job) is None]
        for host in self.hosts:
            found += _unrest(host)
        return found

    async def _held_up(self, job_id: str) -> str | None:
        loaded = await self.disk.inner.load(f"job/{job_id}")
        assert loaded is not None
        job = restore(loaded).job
        return next((why for host in self.hosts if host.process and (why := host.process.client.held_up(job))), None)


def _unrest(host: Host) -> Iterator[str]:
    if host.process is None:
        yield f"host {host.number} has no engine"
        return
    seen = host.process.client.statistics()
    for name in ("active_jobs", "ready_steps", "outstanding_units", "reserved_bytes", "resident_tensors"):
        if value := getattr(seen, name):
            yield f"{host.process.name} has {name} = {value}"
    if seen.workers != len(host.slots):
        yield f"{host.process.name} sees {seen.workers} of {len(host.slots)} workers"
    for slot in host.slots:
        if held := slot.worker.executor.resident.held().tensors:
            yield f"{slot.worker.name} holds {held} tensors"
    if listeners := host.process.engine.hub.listeners():
        yield f"{host.process.name} has {listeners} listeners"


def simulate(
    seed: int, *, engines: int = 1, parts: Parts | None = None, show: Callable[[str], None] | None = None
) -> Report:
    """Run one seed."""
    loop = SimLoop(Random(f"{seed}/scheduler"))
    world = World(seed, loop, engines=engines, parts=parts or Parts(), show=show)
    loop.set_exception_handler(lambda _, context: world.oracle.wrong(f"nobody caught: {context}"))
    with _no_threads(), _log_in(world.trace):
        try:
            loop.run_until_complete(world.live())
        except (Stuck, Endless, ExceptionGroup) as error:
            world.oracle.wrong("".join(traceback.format_exception(error, limit=-3)))
        report = Report(
            seed=seed,
            engines=engines,
            problems=tuple(world.oracle.problems),
            digest=world.trace.digest(),
            turns=loop.turns,
            rest_s=loop.time() - world.healed_at,
            events=world.oracle.events,
            kinds=frozenset(world.oracle.kinds),
        )
        _end_all(loop)
    return report


def _end_all(loop: SimLoop) -> None:
    """A world that fell over leaves tasks behind."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    loop.run_until_complete(asyncio.wait(left) if left else asyncio.sleep(0))
    loop.close()


@contextmanager
def _no_threads() -> Iterator[None]:
    """A thread would do what no seed decides."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> NoReturn:
        raise AssertionError(f"{thread} was started in a simulation")

    threading.Thread.start = refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]


@contextmanager
def _log_in(trace: Trace) -> Iterator[None]:
    logger = logging.getLogger("keyframe")
    handler, before = TraceLog(trace), (logger.propagate, logger.level)
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(logging.INFO)  # the trace is the same whatever others have set
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate, level = before
        logger.setLevel(level)
