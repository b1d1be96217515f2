"""Where a scenario plays: engines with their workers, one more worker at the end of a wire, a store, a disk."""

import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import anyio
from msgspec import Struct

from ops.settings import Settings
from tests.chaos.database import Database, own_postgres
from tests.chaos.hosts import Host, Kept, free_port
from tests.chaos.wire import Wire
from tests.store.disks import mounted

DISK = 256 << 20


class Place(Struct, kw_only=True):
    hosts: list[Host]
    remote: Kept
    """A worker of the first host's engine that nobody there started."""
    wire: Wire
    database: Database | None
    disk: Path
    small: bool
    """Whether the disk is one that may be filled."""
    store: str
    blobs: str
    restarting: anyio.Lock
    """Held while the database is away, and while its connections are looked at."""
    faults: Counter[str]

    def some(self, chance: random.Random) -> Host:
        return chance.choice(self.hosts)

    @property
    def remote_has_joined(self) -> bool:
        """Whether the first host's engine has heard of the worker at the end of the wire."""
        log = self.hosts[0].log()
        return any(f"-{pid}-" in line for line in log.splitlines() if " joined " in line for pid in self.remote.pids)

    def problems(self) -> list[str]:
        """What the processes themselves had to complain of."""
        kept = [*self.hosts, self.remote]
        shouts = [
            f"{one.name} shows a traceback that ends with: {line}" for one in kept for line in tracebacks(one.log())
        ]
        return [*(problem for one in kept for problem in one.problems), *shouts]


@asynccontextmanager
async def opened(folder: Path, store: str, engines: int) -> AsyncIterator[Place]:
    """All of it, running."""
    disk = folder / "disk"
    disk.mkdir()
    with ExitStack() as stack:
        small = stack.enter_context(mounted(disk, DISK))
        database = stack.enter_context(own_postgres()) if store == "postgres" else None
        shared: dict[str, object] = {"blobs": disk / "blobs"} | ({"store": database.url} if database else {})
        hosts = [Host(f"h{n}", folder, **shared) for n in range(engines)]
        wire = Wire(free_port(), hosts[0].workers_port)
        connect = ["worker", "--connect", f"tcp://127.0.0.1:{wire.port}"]
        place = Place(
            hosts=hosts,
            remote=Kept("remote", connect, hosts[0].settings, folder / "remote.log"),
            wire=wire,
            database=database,
            disk=disk,
            small=small,
            store=database.url if database else Settings(data=disk / "h0").store_url,
            blobs=str(disk / "blobs"),
            restarting=anyio.Lock(),
            faults=Counter(),
        )
        async with anyio.create_task_group() as tasks:
            for one in (*hosts, place.remote):
                tasks.start_soon(one.keep)
            tasks.start_soon(wire.run)
            yield place
            tasks.cancel_scope.cancel()


def tracebacks(log: str) -> list[str]:
    """The last line of each: what was raised."""
    found, inside = [], False
    for line in log.splitlines():
        if "Traceback (most recent call last)" in line:
            inside = True
        elif inside and line.strip() and not line.lstrip(" |+-").startswith(("File", "  ", "^", "~")) and _raised(line):
            found.append(line.strip())
            inside = False
    return found


def _raised(line: str) -> bool:
    head = line.lstrip(" |+-").partition(":")[0]
    return not line.startswith(" ") and head.replace(".", "").replace("_", "").isalnum()
