"""What is reserved is derived from what is there: whatever happens to jobs and workers, all of it comes back."""

import itertools
import random
from collections.abc import Sequence

import anyio
import anyio.lowlevel

from cards import registry
from cards.wire import (
    Batch,
    EngineMessage,
    Hello,
    Release,
    Released,
    StepError,
    StepResult,
    TensorRef,
    WorkUnit,
)
from engine.client import Client
from engine.clock import Clock, WallClock
from engine.engine import Engine, EngineSettings
from engine.link import Arrived
from engine.scheduling.scheduler import Limits
from store.blobs import MemoryBlobs
from store.memory import MemoryJournal
from tests.measured import GIB, MeasuredToy
from tests.sim import at_once, request

CYCLES = 10_000
MAKES = {"prepare": ("start",), "count": ("x",), "finish": ()}


class Device:
    """A worker that computes nothing: its first unit runs until it is told to end."""

    def __init__(self) -> None:
        self.units: list[WorkUnit] = []
        self.releases: list[Release] = []

    def take(self, message: EngineMessage) -> None:
        match message:
            case WorkUnit():
                self.units.append(message)
            case Batch(units=units):
                self.units += units
            case Release():
                self.releases.append(message)

    def let_go(self) -> list[Released]:
        """What its releases come to: units that have not begun are dropped."""
        words = []
        for release in self.releases:
            dropped = [unit.id for unit in self.units[1:] if unit.id.job == release.job]
            self.units = self.units[:1] + [unit for unit in self.units[1:] if unit.id not in dropped]
            words.append(Released(release.job, release.epoch, tuple(dropped)))
        self.releases = []
        return words


class Devices:
    """The link, to workers that are gone as well."""

    def __init__(self) -> None:
        self.there: dict[str, Device] = {}

    async def send(self, worker: str, message: EngineMessage, frames: Sequence[bytes] = ()) -> bool:
        if (device := self.there.get(worker)) is not None:
            device.take(message)
        return device is not None

    async def receive(self) -> Arrived:
        raise AssertionError("what arrives is handed in")


class Cycles:
    """Draws what happens next to an engine, and looks whether all is right after it."""

    def __init__(self, seed: int, clock: Clock | None = None) -> None:
        clock = clock or WallClock()
        self.chance = random.Random(seed)
        self.family = MeasuredToy(resident=GIB // 20)
        self.devices = Devices()
        self.most_units = 0
        self._names = itertools.count(1)
        self._digests = itertools.count(1)
        journal = MemoryJournal()
        self.engine = Engine(
            journal=journal,
            link=self.devices,
            registry=registry.Registry({"toy": self.family}),
            clock=clock,
            settings=EngineSettings(name="engine", limits=Limits(batch_most=3), max_active=1000),
            aside=at_once,
        )
        ids = (f"job-{number}" for number in itertools.count(1))
        self.client = Client(
            self.engine,
            journal,
            MemoryBlobs(),
            clock,
            ids=lambda: next(ids),
            chance=random.Random(1),
            aside=at_once,
        )

    async def turn(self) -> None:
        happens = self.chance.choices(
            (self.submit, self.end_a_step, self.fail_a_step, self.cancel, self.lose), (15, 60, 3, 5, 0.5)
        )[0]
        await happens()
        await self.let_go()
        await anyio.lowlevel.checkpoint()  # what was decided becomes durable
        self.check()

    async def submit(self) -> None:
        if len(self.engine.ledger.actors) < 12:
            guidance = self.chance.choice((1.0, 1.1, 1.3, 1.7))
            steps = self.chance.randint(1, 6)
            await self.client.submit(request(steps=steps, seed=self.chance.randrange(1000), guidance=guidance))
        await self.engine.reconcile()

    async def end_a_step(self) -> None:
        await self._answer(None)

    async def fail_a_step(self) -> None:
        await self._answer(StepError(self.chance.choice(("error", "oom")), "asked to"))

    async def cancel(self) -> None:
        if self.engine.ledger.actors:
            await self.client.cancel(self.chance.choice(sorted(self.engine.ledger.actors)))

    async def lose(self) -> None:
        worker = self.chance.choice(sorted(self.devices.there))
        del self.devices.there[worker]
        await self.engine.lose(worker, "was killed")
        await self.join()

    async def join(self) -> None:
        name = f"worker-{next(self._names)}"
        self.devices.there[name] = Device()
        hello = Hello(
            worker=name,
            pool="default",
            pid=0,
            host="here",
            ranks=1,
            credits=4,
            memory_bytes=GIB,
            models=(registry.identity(self.family),),
            fingerprint="device=cpu",
        )
        await self.engine.handle(Arrived(name, hello))

    async def let_go(self) -> None:
        for name, device in list(self.devices.there.items()):
            if not device.units or self.chance.random() < 0.5:
                for released in device.let_go():
                    await self.engine.handle(Arrived(name, released))

    async def _answer(self, error: StepError | None) -> None:
        busy = sorted(name for name, device in self.devices.there.items() if device.units)
        if not busy:
            return
        name = self.chance.choice(busy)
        unit = self.devices.there[name].units.pop(0)
        made = {what: self._tensor() for what in MAKES[unit.plan.loop]} if error is None else {}
        result = StepResult(id=unit.id, tensors=made, error=error, seconds=0.001)
        await self.engine.handle(Arrived(name, result))

    def _tensor(self) -> TensorRef:
        return TensorRef(f"tensor-{next(self._digests)}", "float32", (4, 4), (4, 1), 64)

    def check(self) -> None:
        """Of each worker: what is with it, and all jobs at home there, by themselves."""
        for worker, seat in self.engine.fleet.seats.items():
            units = seat.outstanding.values()
            at_home = [actor for actor in self.engine.ledger.actors.values() if actor.home == worker]
            resident = sum(actor.account.resident_bytes for actor in at_home if actor.account is not None)
            peaks = sum(reserved.demand.peak_bytes for reserved in units)
            assert resident + peaks <= GIB, f"{worker} is over its limit with {len(units)} units"
            assert {unit.id for unit in self.devices.there[worker].units} <= seat.outstanding.keys()
            self.most_units = max(self.most_units, len(units))


async def test_ten_thousand_cycles_of_whatever_happens_end_with_nothing_reserved() -> None:
    cycles = Cycles(seed=5)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cycles.engine.ledger.tell)
        for _ in range(2):
            await cycles.join()
        for _ in range(CYCLES):
            await cycles.turn()
        while cycles.engine.ledger.actors:
            await cycles.end_a_step()
            await cycles.let_go()
            await cycles.engine.reconcile()
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()

    seen = cycles.client.statistics()
    assert (seen.outstanding_units, seen.reserved_bytes, seen.ready_steps, seen.active_jobs) == (0, 0, 0, 0)
    assert [worker.reserved_bytes for worker in cycles.client.capacity().workers] == [0, 0]
    assert cycles.most_units > 3, "nothing ever ran beside anything"
    assert seen.steps_completed > CYCLES / 4
