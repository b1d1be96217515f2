"""The wires of a simulated world: what a ROUTER and its DEALERs keep, and no more than that.

Messages between one worker and its engine stay in order. Between different workers they come in any order. A wire can
be held (a partition: what is sent arrives when it ends), and it can break: what is on its way is lost, both ends go on,
and neither is told. A worker's name belongs to the wire that used it last.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from random import Random

from msgspec import Struct

from cards import wire
from cards.wire import EngineMessage, Heartbeat, WorkerMessage
from engine.link import Arrived
from tests.simulation.trace import Trace

Letter = tuple[bytes, tuple[bytes, ...]]


class Weather(Struct):
    """What wires do to messages: seconds that they take, and the chance that one comes twice or cannot be sent."""

    usual_s: float = 0.002
    slow_s: float = 0.0
    twice: float = 0.0
    unroutable: float = 0.0

    def heal(self) -> None:
        self.slow_s = self.twice = self.unroutable = 0.0

    @property
    def delay_s(self) -> float:
        return self.slow_s or self.usual_s


class Pipe:
    """One direction of a wire: first in, first out."""

    def __init__(self, weather: Weather, chance: Random, arrive: Callable[[Letter], None]) -> None:
        self._weather = weather
        self._chance = chance
        self._arrive = arrive
        self._letters: deque[Letter] = deque()
        self._due = 0
        self._held = False

    def send(self, letter: Letter) -> None:
        for _ in range(1 + (self._chance.random() < self._weather.twice)):
            self._letters.append(letter)
            delay_s = self._chance.expovariate(1) * self._weather.delay_s
            asyncio.get_running_loop().call_later(delay_s, self._next)

    def hold(self, held: bool) -> None:
        self._held = held
        while not held and self._due and self._letters:
            self._due -= 1
            self._arrive(self._letters.popleft())
        self._due = 0 if not held else self._due

    def lose(self) -> int:
        lost = len(self._letters)
        self._letters.clear()
        self._due = 0
        return lost

    def _next(self) -> None:
        if self._held:
            self._due += 1
        elif self._letters:
            self._arrive(self._letters.popleft())


class Wire:
    """Between one worker and the engine that it is connected to."""

    def __init__(self, worker: str, router: "Router", hear: Callable[[EngineMessage, Sequence[bytes]], None]) -> None:
        self.worker = worker
        self.router = router
        self._hear = hear
        self.to_worker = Pipe(router.weather, router.chance, self._to_worker)
        self.to_engine = Pipe(router.weather, router.chance, self._to_engine)

    def tell(self, message: WorkerMessage, frames: Sequence[bytes]) -> None:
        self.to_engine.send((wire.encode(message), tuple(frames)))

    def hold(self, held: bool) -> None:
        self.to_worker.hold(held)
        self.to_engine.hold(held)

    def lose(self) -> int:
        return self.to_worker.lose() + self.to_engine.lose()

    def close(self) -> None:
        """The worker is gone. What it has said still arrives; the engine's end notices a little later."""
        self.to_worker.lose()
        asyncio.get_running_loop().call_later(self.router.weather.delay_s, self.router.drop, self)

    @property
    def alive(self) -> bool:
        return self.router.open and self.router.routes.get(self.worker) is self

    def _to_worker(self, letter: Letter) -> None:
        self._hear(wire.decode_engine_message(letter[0]), letter[1])

    def _to_engine(self, letter: Letter) -> None:
        message = wire.decode_worker_message(letter[0])
        if not isinstance(message, Heartbeat):
            self.router.trace(self.worker, f"is heard: {brief(message)}")
        self.router.inbox.put_nowait(Arrived(self.worker, message, letter[1]))


class Router:
    """An engine's end of its wires. `open` until its engine is gone."""

    def __init__(self, weather: Weather, chance: Random, trace: Trace) -> None:
        self.weather = weather
        self.chance = chance
        self.trace = trace
        self.open = True
        self.routes: dict[str, Wire] = {}
        self.inbox: asyncio.Queue[Arrived] = asyncio.Queue()

    def connect(self, worker: str, hear: Callable[[EngineMessage, Sequence[bytes]], None]) -> Wire:
        if (before := self.routes.pop(worker, None)) is not None:
            before.lose()
        self.routes[worker] = Wire(worker, self, hear)
        return self.routes[worker]

    def drop(self, gone: Wire) -> None:
        if self.routes.get(gone.worker) is gone:
            del self.routes[gone.worker]

    def close(self) -> None:
        """Its engine was killed: nothing that it has not sent leaves, and nothing arrives."""
        self.open = False
        for one in self.routes.values():
            one.to_engine.lose()
        self.routes.clear()

    async def send(self, worker: str, message: EngineMessage, frames: Sequence[bytes] = ()) -> bool:
        await asyncio.sleep(0)  # a socket lets others have a turn
        to = self.routes.get(worker)
        if to is None or self.chance.random() < self.weather.unroutable:
            self.trace("engine", f"cannot reach {worker} with {brief(message)}")
            return False
        self.trace("engine", f"to {worker}: {brief(message)}")
        to.to_worker.send((wire.encode(message), tuple(frames)))
        return True

    async def receive(self) -> Arrived:
        return await self.inbox.get()


def brief(message: EngineMessage | WorkerMessage) -> str:
    """A message in a few words."""
    match message:
        case wire.WorkUnit(id=unit, plan=plan):
            return f"run {plan.loop}/{plan.step} of {_unit(unit)}"
        case wire.Batch(units=units):
            return f"run together: {', '.join(brief(unit) for unit in units)}"
        case wire.StepResult(id=unit, error=error):
            return f"{_unit(unit)} is done" if error is None else f"{_unit(unit)} failed: {error.kind}"
        case wire.Release(job=job, epoch=epoch) | wire.Released(job=job, epoch=epoch):
            return f"{type(message).__name__.lower()} {job} up to epoch {epoch}"
        case wire.Goodbye(reason=reason):
            return f"goodbye, {reason}"
        case _:
            return type(message).__name__.lower()


def _unit(unit: wire.UnitId) -> str:
    return f"{unit.job} e{unit.epoch} v{unit.version} a{unit.attempt} #{unit.serial}"
