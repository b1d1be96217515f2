"""What goes wrong: every kind once, in an order that chance decides, before one comes again."""

import random
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import anyio
import psutil
from anyio.to_thread import run_sync
from msgspec import Struct

from tests.chaos.database import ANY, LISTENERS
from tests.chaos.hosts import Host
from tests.chaos.place import Place
from tests.chaos.wire import Trouble
from tests.store.disks import fill

LEASE_S, SILENT_S = 2.0, 1.0
EVERY_S = (0.4, 1.6)


class Fault(Struct, frozen=True):
    """`share` of 1 says how long it lasts, of what its kind may; `pick` what it befalls."""

    at: float
    kind: str
    share: float
    pick: int


def drawn(chance: random.Random, seconds: float, kinds: Sequence[str]) -> list[Fault]:
    """Those of one scenario, by the time at which they begin."""
    faults, at = [], 0.0
    for kind in _shuffled(chance, kinds):
        at += chance.uniform(*EVERY_S)
        if at >= seconds:
            return faults
        faults.append(Fault(at, kind, chance.random(), chance.randrange(1 << 16)))
    raise AssertionError("there are always more")


def kinds(place: Place) -> list[str]:
    """Those that there can be here."""
    return [
        kind
        for kind in FAULTS
        if (place.database is not None or kind not in OF_THE_DATABASE) and (place.small or kind != "full disk")
    ]


async def happen(place: Place, faults: Sequence[Fault]) -> None:
    """All of them, each at its time; returns when the last is over and all is well again."""
    began = time.monotonic()
    async with anyio.create_task_group() as tasks:
        for fault in faults:
            await anyio.sleep(max(0.0, began + fault.at - time.monotonic()))
            tasks.start_soon(_befall, place, fault)
    for host in place.hosts:
        host.send(signal.SIGCONT)


async def _befall(place: Place, fault: Fault) -> None:
    await FAULTS[fault.kind](place, fault)
    place.faults[fault.kind] += 1


def _shuffled(chance: random.Random, kinds: Sequence[str]) -> Iterator[str]:
    while True:
        yield from chance.sample(kinds, len(kinds))


def _lasting(fault: Fault, least: float, most: float) -> float:
    return least + fault.share * (most - least)


def _host(place: Place, fault: Fault) -> Host:
    return place.hosts[fault.pick % len(place.hosts)]


async def _kill(place: Place, fault: Fault, *, tree: bool) -> None:
    _host(place, fault).kill(_lasting(fault, 0.0, 1.5 * LEASE_S), tree=tree)


async def _terminate(place: Place, fault: Fault) -> None:
    _host(place, fault).terminate(_lasting(fault, 0.0, 1.5 * LEASE_S))


async def _freeze(place: Place, fault: Fault, least: float, most: float) -> None:
    host = _host(place, fault)
    host.send(signal.SIGSTOP)
    await anyio.sleep(_lasting(fault, least, most))
    host.send(signal.SIGCONT)


def _worker(place: Place, fault: Fault) -> psutil.Process | None:
    """Any worker, of whatever engine."""
    remote = place.remote.process
    ours = [psutil.Process(remote.pid)] if remote is not None and remote.poll() is None else []
    there = [*(child for host in place.hosts for child in host.children()), *ours]
    return there[fault.pick % len(there)] if there else None


async def _kill_worker(place: Place, fault: Fault) -> None:
    if (worker := _worker(place, fault)) is not None:
        if place.remote.process is not None and worker.pid == place.remote.process.pid:
            place.remote.kill(0.0, tree=False)
        else:
            with suppress(psutil.NoSuchProcess):
                worker.kill()


async def _freeze_worker(place: Place, fault: Fault) -> None:
    if (worker := _worker(place, fault)) is not None:
        with suppress(psutil.NoSuchProcess):
            worker.suspend()
            await anyio.sleep(_lasting(fault, 0.5 * SILENT_S, 3 * SILENT_S))
            worker.resume()


async def _restart_database(place: Place, fault: Fault) -> None:
    async with place.restarting:
        assert place.database is not None
        await run_sync(place.database.restart, _lasting(fault, 0.0, 1.5 * LEASE_S))


async def _cut_connection(place: Place, fault: Fault, which: str) -> None:
    async with place.restarting:
        assert place.database is not None
        await run_sync(place.database.cut_one, random.Random(fault.pick), which)


async def _fill_disk(place: Place, fault: Fault) -> None:
    filler = place.disk / f"filler-{fault.pick}"
    await run_sync(fill, filler)
    await anyio.sleep(_lasting(fault, 0.5, 3.0))
    filler.unlink()


async def _trouble(place: Place, fault: Fault, kind: Trouble) -> None:
    async with place.wire.trouble(kind):
        await anyio.sleep(_lasting(fault, 0.5 * SILENT_S, 3 * SILENT_S))


FAULTS: dict[str, Callable[[Place, Fault], Awaitable[None]]] = {
    "kill -9 engine": partial(_kill, tree=False),
    "kill -9 tree": partial(_kill, tree=True),
    "kill -9 worker": _kill_worker,
    "SIGSTOP engine past lease": partial(_freeze, least=1.5 * LEASE_S, most=2.5 * LEASE_S),
    "SIGSTOP engine": partial(_freeze, least=0.1 * LEASE_S, most=0.8 * LEASE_S),
    "SIGSTOP worker": _freeze_worker,
    "SIGTERM engine": _terminate,
    "database restart": _restart_database,
    "connection cut": partial(_cut_connection, which=ANY),
    "listener cut": partial(_cut_connection, which=LISTENERS),
    "full disk": _fill_disk,
    "no heartbeats": partial(_trouble, kind=Trouble.NO_HEARTBEATS),
    "messages lost": partial(_trouble, kind=Trouble.NOTHING_ARRIVES),
    "wire stalled": partial(_trouble, kind=Trouble.STALLED),
    "wire cut": partial(_trouble, kind=Trouble.CUT),
}

OF_THE_DATABASE = {"database restart", "connection cut", "listener cut"}
