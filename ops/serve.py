"""Composes an engine: journal, link, workers, HTTP, in that order, and takes them down the other way round."""

import asyncio
import contextlib
import functools
import logging
import os
import random
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import uvicorn
import zmq
from msgspec import Struct

from api.app import build_app
from api.ending import AnsweredAtTheEnd
from cards import parallel, registry
from cards.wire import Hello
from engine.client import Client
from engine.clock import Clock, WallClock
from engine.collect import keep_collecting
from engine.engine import Engine, EngineSettings
from engine.link import ZmqLink, listen
from engine.supervisor import Process, Supervisor
from ops import devices, worker
from ops.errors import BadSettings
from ops.models import families_of
from ops.settings import Settings
from ops.version import VERSION
from ops.whereabouts import Whereabouts, announced
from store.blobs import open_blobs, tenants
from store.lock import held
from store.open import open_journal

log = logging.getLogger("keyframe.ops")


class Serving(Struct, frozen=True):
    """An engine that is up."""

    engine: Engine
    client: Client
    url: str
    workers_at: str


async def serve(settings: Settings) -> None:
    """Until SIGTERM or SIGINT; a second one ends the process at once."""
    async with running(settings) as serving:
        log.info("serving %s, workers join at %s", serving.url, serving.workers_at)
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            await anext(signals)
            log.info("stopping: no new work, running steps may end")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_leave_at_once, signals)
                await serving.engine.drain(settings.grace_s)
                tasks.cancel_scope.cancel()


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Serving]:
    """An engine with its workers and its HTTP server, for as long as it is entered.

    Raises BadSettings, StoreError (locked, unavailable, of another schema), InvalidCard, NoFamily.
    """
    families = families_of(settings)
    registry.tell_unusable(families)
    if settings.plan is not None:
        parallel.check(settings.plan, families)
    await devices.check(settings)
    clock = WallClock()
    with _listening(settings) as http:
        make_folder(settings.data)
        opened = open_journal(settings.store_url, durability=settings.durability)
        async with opened as journal, _link(settings) as link:
            blobs = open_blobs(settings.blobs_url)
            await anyio.to_thread.run_sync(tenants.move_in, blobs, await journal.identity())

            async def spawn(slot: int) -> Process:
                serves, beside = settings.slots[slot], len(settings.slots) - 1
                of_slot = worker.settings_of(
                    settings, link.address, os.getpid(), slot, families.unusable, serves, beside
                )
                command = worker.command(of_slot, settings.blobs_url)
                return await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL)

            async def ended(pid: int, how: str) -> bool:
                return await engine.lose_process(socket.gethostname(), pid, how)

            def kill(worker: Hello) -> None:
                if worker.host == socket.gethostname():
                    supervisor.kill(worker.pid)

            url = f"http://{settings.host}:{http.getsockname()[1]}"
            supervisor = Supervisor(spawn, len(settings.slots), clock, ended)
            engine = Engine(
                journal=journal,
                link=link,
                registry=families,
                clock=clock,
                settings=EngineSettings(
                    name=f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}",
                    url=settings.advertise or url,
                    lease_s=settings.lease_s,
                    blobs=blobs.name,
                    max_active=settings.max_active,
                    max_deaths=settings.max_deaths,
                    silent_s=settings.silent_s,
                    cancel_grace_s=settings.cancel_grace_s,
                    policy=settings.policy,
                    limits=settings.limits,
                ),
                kill=kill,
            )
            client = Client(
                engine,
                journal,
                blobs,
                clock,
                ids=new_id,
                chance=random.SystemRandom(),
                stall_s=settings.stall_s,
                retention=settings.retention,
            )
            server = _http_server(client, clock)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(supervisor.run)
                tasks.start_soon(engine.run)
                if settings.gc_every_s:
                    forget = functools.partial(client.collect, dry_run=False)
                    tasks.start_soon(keep_collecting, forget, engine.peers.is_first, clock, settings.gc_every_s)
                async with anyio.create_task_group() as web:
                    with announced(settings.data, Whereabouts(os.getpid(), url, settings.store_name)):
                        web.start_soon(server.serve, [http])
                        yield Serving(engine, client, url, link.address)
                    server.should_exit = True
                tasks.cancel_scope.cancel()


def new_id() -> str:
    return f"job_{secrets.token_hex(12)}"


def _http_server(client: Client, clock: Clock) -> uvicorn.Server:
    app = AnsweredAtTheEnd(build_app(client, version=VERSION, clock=clock, ids=lambda: secrets.token_hex(8)))
    return _Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1))


class _Server(uvicorn.Server):
    """Signals are the composition root's: HTTP is up until the engine has stopped."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _leave_at_once(signals: AsyncIterator[signal.Signals]) -> None:
    await anext(signals)
    os._exit(130)


@contextlib.contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    try:
        http = socket.create_server((settings.host, settings.port), backlog=1024)
    except OSError as error:
        remedy = "stop what listens there or choose another --port"
        raise BadSettings(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; {remedy}") from error
    with http:
        yield http


def _private_address(data: Path) -> str | None:
    """In the data folder, where the next engine takes it over; None for one whose name is too long for a socket."""
    path = str((data / "workers.sock").absolute())
    return f"ipc://{path}" if len(path.encode()) < 100 else None


def make_folder(data: Path) -> None:
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadSettings(f"cannot make the data folder {data}: {error.strerror}; choose another --data") from error


@asynccontextmanager
async def _link(settings: Settings) -> AsyncIterator[ZmqLink]:
    """Raises BadSettings, StoreLocked if an engine of this data folder is up: the socket there is that one's."""
    try:
        with held(settings.data / "workers.lock"):
            async with listen(settings.listen_workers or _private_address(settings.data)) as link:
                yield link
    except zmq.ZMQError as error:
        raise BadSettings(f"cannot listen for workers at {settings.listen_workers}: {error.strerror}") from error
