"""What goes wrong in a simulated world. Each fault is a coroutine that does its harm and, if it has an end, ends it."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.host import Host, Slot

if TYPE_CHECKING:
    from tests.simulation.world import World


async def kill_engine(world: "World", chance: Random) -> None:
    """At whatever await it then is."""
    if (process := _host(world, chance).process) is not None:
        world.loop.after_turns(chance.randrange(300), process.kill)


async def drain_engine(world: "World", chance: Random) -> None:
    if (process := _host(world, chance).process) is not None:
        process.drain(grace_s=chance.uniform(0.1, 5))
        await asyncio.sleep(chance.uniform(1, 20))
        process.kill()


async def kill_worker(world: "World", chance: Random) -> None:
    slot = _slot(world, chance)
    world.loop.after_turns(chance.randrange(300), lambda: slot.worker.end("was killed by signal 9"))


async def stop_worker(world: "World", chance: Random) -> None:
    _slot(world, chance).worker.stop()


async def freeze_worker(world: "World", chance: Random) -> None:
    worker = _slot(world, chance).worker
    worker.freeze(True)
    await asyncio.sleep(chance.uniform(0.1, 12))
    worker.freeze(False)


async def partition(world: "World", chance: Random) -> None:
    """What is sent meanwhile arrives later."""
    wire = _slot(world, chance).worker.wire
    if wire is not None:
        world.trace(wire.worker, "is cut off")
        wire.hold(True)
        await asyncio.sleep(chance.uniform(0.1, 12))
        wire.hold(False)


async def reconnect(world: "World", chance: Random) -> None:
    """The worker can't be reached for a moment, and what was on its way is lost."""
    wire = _slot(world, chance).worker.wire
    if wire is not None and (router := wire.router).open:
        world.trace(wire.worker, f"reconnects, {wire.lose()} messages are lost")
        router.drop(wire)


async def storm(world: "World", chance: Random) -> None:
    """Messages are slow, and may find no way."""
    world.weather.slow_s = chance.choice([0.01, 0.3, 1.0])
    world.weather.unroutable = chance.choice([0.0, 0.05])
    await asyncio.sleep(chance.uniform(1, 8))
    world.weather.slow_s = world.weather.unroutable = 0.0


async def echo(world: "World", chance: Random) -> None:
    """Messages come twice."""
    world.weather.twice = 0.3
    await asyncio.sleep(chance.uniform(1, 8))
    world.weather.twice = 0.0


async def slow_disk(world: "World", chance: Random) -> None:
    world.disk.slow_s = chance.choice([0.1, 1.0])
    await asyncio.sleep(chance.uniform(1, 6))
    world.disk.slow_s = 0.0


async def failing_disk(world: "World", chance: Random) -> None:
    """What it refuses may be written all the same."""
    world.disk.refuses = chance.choice([0.2, 1.0])
    world.disk.unsure = chance.choice([0.0, 0.3, 1.0])
    await asyncio.sleep(chance.uniform(0.1, 5))
    world.disk.refuses = world.disk.unsure = 0.0


async def failing_blobs(world: "World", chance: Random) -> None:
    world.blobs.failing = True
    await asyncio.sleep(chance.uniform(0.1, 5))
    world.blobs.failing = False


async def move_clock(world: "World", chance: Random) -> None:
    _host(world, chance).clock.skew_s += chance.choice([-3600, -5, 5, 3600, 86400])


Fault = Callable[["World", Random], Awaitable[None]]

FAULTS: tuple[Fault, ...] = (
    kill_engine,
    drain_engine,
    kill_worker,
    stop_worker,
    freeze_worker,
    partition,
    reconnect,
    storm,
    echo,
    slow_disk,
    failing_disk,
    failing_blobs,
    move_clock,
)


def mixed(chance: Random) -> list[Fault]:
    """Some kinds of faults. Both ends of a wire count what comes: one that echoes cannot be seen to lose."""
    kinds = chance.sample(FAULTS, chance.randint(0, 5))
    return [kind for kind in kinds if echo not in kinds or kind not in (reconnect, storm)]


def _host(world: "World", chance: Random) -> Host:
    return chance.choice(world.hosts)


def _slot(world: "World", chance: Random) -> Slot:
    return chance.choice([slot for host in world.hosts for slot in host.slots])
