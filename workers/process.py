"""A worker process: rank 0 with its link to the engine, or another rank that follows it."""

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import zmq
from msgspec import Struct
from msgspec.structs import replace

from cards import fingerprint, registry
from cards.branches import Branches, check
from cards.model import Model
from cards.roles import Role
from workers import devices, exchange
from workers.execute import Executor, load_models
from workers.link import Identity, Link
from workers.observed import executor
from workers.ranks import Followers, follow
from workers.resident import BlobStore
from workers.transfers import transferring


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """One pool member. `threads` is what each rank computes with; results do not depend on it."""

    connect: str
    pool: str = "default"
    families: tuple[str, ...] = registry.DEFAULT_FAMILIES
    models: tuple[Model, ...] = ()
    ranks: int = 1
    device: str = "cpu"
    """cpu, cuda, cuda:1 or auto: each rank takes one."""
    slot: int = 0
    """Which of its machine's workers this is: its ranks take the devices after those of the workers before it."""
    parallel: Literal["cfg"] | None = None
    """Two ranks share the branches of guidance instead of each evaluating all of them."""
    credits: int = 16
    threads: int = 1
    memory_bytes: int | None = None
    """For weights, tensors and steps; what the device has, if left out."""
    serves: tuple[Role, ...] = ()
    """It runs the loops of these roles and loads what they need; all if there are none."""
    transfers: str = ""
    """Where other workers fetch what it holds; a private socket for those on its machine if left out."""
    heartbeat_s: float = 1.0
    rank_timeout_s: float = 60.0
    meet_in: str = ""
    """The folder in which its ranks find each other: rank 0 makes it."""
    extensions: tuple[str, ...] = ()
    """Observers: nan_watch, profiler, taps:MODULE, record:FOLDER, align:FOLDER."""
    parent: int | None = None
    """Process id whose death ends this worker; None for one that stands alone."""


def ignore_interrupts(settings: WorkerSettings) -> None:
    """Control-C reaches all processes of a terminal; a worker with a parent leaves it to that one."""
    if settings.parent is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


Follower = Callable[[WorkerSettings, int], list[str]]
"""The command line of another rank."""


def lead(settings: WorkerSettings, blobs: BlobStore, follower: Follower) -> str:
    """Rank 0's life. Returns why it ended."""
    sys.setswitchinterval(5e-4)  # the link's thread must get a word in while the executor's is in Python
    with ExitStack() as stack:
        watch_parent(settings.parent)
        device, *_ = (_device(settings, rank) for rank in range(settings.ranks))
        others = Others()
        if settings.ranks > 1:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ranks-"))
            settings = replace(settings, meet_in=folder)
        followers = stack.enter_context(_followers(settings, others, follower))
        families, executor = stack.enter_context(_prepared(settings, blobs, 0, device))
        registry.tell_unusable(families)
        numerics = fingerprint.numerics(device)
        followers.ready(numerics)
        identity = Identity(
            worker=f"{settings.pool}-{os.getpid()}-{secrets.token_hex(4)}",
            pool=settings.pool,
            ranks=settings.ranks,
            credits=settings.credits,
            memory_bytes=settings.memory_bytes or devices.memory_of(device),
            models=tuple(registry.identity(family) for family in families.values()),
            fingerprint=numerics,
            blobs=blobs.name,
            serves=settings.serves,
        )
        transfers = stack.enter_context(transferring(executor.resident.find, settings.transfers))
        link = Link(
            settings.connect, identity, executor, followers, heartbeat_s=settings.heartbeat_s, transfers=transfers
        )
        others.ended = link.abandon
        signal.signal(signal.SIGTERM, lambda *_: link.stop())
        if settings.parent is None:
            signal.signal(signal.SIGINT, lambda *_: link.stop())
        return link.run()


def follow_rank_zero(settings: WorkerSettings, blobs: BlobStore, rank: int) -> None:
    """Another rank's life: `settings.connect` is rank 0's address, `settings.parent` its process."""
    watch_parent(settings.parent)
    device = _device(settings, rank)
    with (
        _prepared(settings, blobs, rank, device) as (_, executor),
        zmq.Context() as context,
        context.socket(zmq.PAIR) as socket,
    ):
        socket.connect(settings.connect)
        follow(socket, executor, fingerprint.numerics(device))


def watch_parent(parent: int | None, every_s: float = 0.5) -> None:
    """End this process when its parent is gone, whatever its threads are doing: an orphan would hold the device."""
    if parent is None:
        return

    def watch() -> None:
        pause = threading.Event()
        while os.getppid() == parent:
            pause.wait(every_s)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _device(settings: WorkerSettings, rank: int) -> str:
    """Raises NoDevice."""
    return devices.device_of(settings.device, settings.slot * settings.ranks + rank)


@contextmanager
def _prepared(
    settings: WorkerSettings, blobs: BlobStore, rank: int, device: str
) -> Iterator[tuple[registry.Registry, Executor]]:
    """Raises NothingToShare, ExchangeBroken and what `registry.load` raises."""
    import torch

    torch.set_num_threads(settings.threads)
    devices.settle(device)
    families = registry.load(settings.families, settings.models)
    with _branches(settings, families, rank, device) as branches:
        models = load_models(families, device, branches)
        yield families, executor(models, blobs, settings.extensions, stores=rank == 0, device=device)


@contextmanager
def _branches(
    settings: WorkerSettings, families: registry.Registry, rank: int, device: str
) -> Iterator[Branches | None]:
    if settings.parallel is None:
        yield None
        return
    check(families)
    with exchange.opened(Path(settings.meet_in, "exchange"), rank, device, settings.rank_timeout_s) as opened:
        yield opened


class Others:
    """The processes of the other ranks. `ended` is called, on a thread, when one ends that was not told to."""

    def __init__(self) -> None:
        self.ended: Callable[[str], None] = lambda reason: None
        self._leaving = False

    def start(self, command: list[str], rank: int) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        threading.Thread(target=self._watch, args=(process, rank), name=f"rank {rank}", daemon=True).start()
        return process

    def end(self, process: "subprocess.Popen[bytes]", grace_s: float = 2.0) -> None:
        self._leaving = True
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _watch(self, process: "subprocess.Popen[bytes]", rank: int) -> None:
        code = process.wait()
        if not self._leaving:
            self.ended(f"rank {rank} ended with {code}")


@contextmanager
def _followers(settings: WorkerSettings, others: Others, follower: Follower) -> Iterator[Followers]:
    """Start the other ranks and the sockets to them; all of them are gone afterwards."""
    if settings.ranks == 1:
        yield Followers([], settings.rank_timeout_s)
        return
    with ExitStack() as stack:
        context = stack.enter_context(zmq.Context())
        sockets: list[zmq.Socket[bytes]] = []
        for rank in range(1, settings.ranks):
            socket = stack.enter_context(context.socket(zmq.PAIR))
            socket.setsockopt(zmq.LINGER, 0)
            address = f"ipc://{settings.meet_in}/{rank}"
            socket.bind(address)
            sockets.append(socket)
            of_rank = replace(settings, connect=address, parent=os.getpid())
            stack.callback(others.end, others.start(follower(of_rank, rank), rank))
        yield Followers(sockets, settings.rank_timeout_s)
