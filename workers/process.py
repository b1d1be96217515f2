"""A worker process: rank 0 with its link to the engine, or another rank that follows it."""

import ctypes
import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import zmq
from msgspec import Struct
from msgspec.structs import replace

from cards import fingerprint, registry
from cards.model import Model
from cards.parallel import ULYSSES, ParallelPlan, check
from cards.roles import Role
from workers import devices, exchange, pulse
from workers.caches import BUDGETS, WEIGHTS, Caches
from workers.compiled import Tier
from workers.execute import Executor
from workers.link import Identity, Link
from workers.loaded import Loaded, load_models
from workers.observed import executor
from workers.own_folder import own_folder
from workers.peers import Peers, joined
from workers.ranks import Followers, follow
from workers.resident import BlobStore
from workers.transfers import transferring

log = logging.getLogger("keyframe.workers")


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
    beside: int = 0
    """How many workers with as many ranks were started with it: on a CPU they share its memory."""
    parallel: ParallelPlan | None = None
    """What the ranks share of a step instead of each running all of it."""
    credits: int = 16
    threads: int = 1
    memory_bytes: int | None = None
    """For weights, tensors and steps; what the device has for each rank, if left out."""
    serves: tuple[Role, ...] = ()
    """It runs the loops of these roles and loads what they need; all if there are none."""
    transfers: str = ""
    """Where other workers fetch what it holds; a private socket for those on its machine if left out."""
    weights_bytes: int | None = None
    """Of components that are loaded at once on each rank; its memory, if left out."""
    compile: bool = False
    """Whether blocks of transformers are compiled, which changes bits. Of one rank only."""
    heartbeat_s: float = 1.0
    rank_timeout_s: float = 60.0
    meet_in: str = ""
    """The folder in which its ranks find each other: rank 0 makes it."""
    extensions: tuple[str, ...] = ()
    """Observers: nan_watch, profiler, taps:MODULE, record:FOLDER, align:FOLDER."""
    parent: int | None = None
    """Process id whose death ends this worker; None for one that stands alone."""
    pulse: int | None = None
    """The pipe by which another rank shows rank 0 that it lives."""


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
            settings = replace(settings, meet_in=str(stack.enter_context(own_folder("ranks"))))
        peers = stack.enter_context(_peers(settings, 0))
        followers = stack.enter_context(_followers(settings, others, follower, peers))
        families, executor = stack.enter_context(_prepared(settings, blobs, peers, 0, device))
        registry.tell_unusable(families)
        numerics = _numerics(settings, device)
        followers.ready(numerics)
        identity = Identity(
            worker=f"{settings.pool}-{os.getpid()}-{secrets.token_hex(4)}",
            pool=settings.pool,
            ranks=settings.ranks,
            credits=settings.credits,
            memory_bytes=_memory_bytes(settings, device),
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


def follow_rank_zero(settings: WorkerSettings, blobs: BlobStore, rank: int) -> str:
    """Another rank's life, to why it ended. `settings.connect` is rank 0's address, `settings.parent` its process."""
    watch_parent(settings.parent)
    device = _device(settings, rank)
    with (
        _peers(settings, rank) as peers,
        _prepared(settings, blobs, peers, rank, device) as (_, executor),
        zmq.Context() as context,
        context.socket(zmq.PAIR) as socket,
    ):
        socket.setsockopt(zmq.LINGER, 1000)
        socket.connect(settings.connect)
        if settings.pulse is not None:
            pulse.beat(settings.pulse, settings.heartbeat_s)
        return follow(socket, executor, _numerics(settings, device), peers)


PR_SET_PDEATHSIG = 1


def watch_parent(parent: int | None, every_s: float = 0.5) -> None:
    """End this process when its parent is gone, whatever its threads are doing: an orphan would hold the device.

    Linux sees to it at once, and also if this process is frozen.
    """
    if parent is None:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        pause = threading.Event()
        while os.getppid() == parent:
            pause.wait(every_s)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _device(settings: WorkerSettings, rank: int) -> str:
    """Raises NoDevice."""
    return devices.device_of(settings.device, settings.slot * settings.ranks + rank)


def _memory_bytes(settings: WorkerSettings, device: str) -> int:
    if settings.memory_bytes is not None:
        return settings.memory_bytes
    return devices.memory_of(device, (settings.beside + 1) * settings.ranks)


def _numerics(settings: WorkerSettings, device: str) -> str:
    """Dealt out tokens have the bits of one rank where cards/ulysses.py knows the kernels, which is on a CPU."""
    apart = settings.parallel is not None and settings.parallel.degree(ULYSSES) > 1 and device != "cpu"
    numerics = fingerprint.numerics(device, compiled_for=settings.threads if settings.compile else None)
    return f"{numerics} {settings.parallel}" if apart else numerics


@contextmanager
def _peers(settings: WorkerSettings, rank: int) -> Iterator[Peers | None]:
    """For ranks that share steps."""
    if settings.parallel is None:
        yield None
        return
    with joined(Path(settings.meet_in), rank, settings.ranks, settings.rank_timeout_s) as opened:
        yield opened


@contextmanager
def _prepared(
    settings: WorkerSettings, blobs: BlobStore, peers: Peers | None, rank: int, device: str
) -> Iterator[tuple[registry.Registry, Executor]]:
    """Raises NothingToShare, ExchangeBroken and what `registry.load` raises."""
    import torch

    torch.set_num_threads(settings.threads)
    devices.settle(device)
    families = registry.load(settings.families, settings.models)
    with _shared(settings, families, peers, device) as shared:
        models = load_models(families, device, settings.parallel, shared.branches, shared.ranks)
        yield families, _executor(settings, models, blobs, rank, device)


def _executor(
    settings: WorkerSettings, models: Mapping[str, Loaded], blobs: BlobStore, rank: int, device: str
) -> Executor:
    """Raises WeightsTooLarge."""
    room = settings.weights_bytes or _memory_bytes(settings, device)
    caches = Caches({**BUDGETS, WEIGHTS: room})
    runs = executor(models, blobs, settings.extensions, stores=rank == 0, device=device, caches=caches)
    runs.residency.check(settings.weights_bytes)
    if settings.compile:
        runs.compile(Tier(fingerprint.numerics(device), runs.residency.spent))
    return runs


@contextmanager
def _shared(
    settings: WorkerSettings, families: registry.Registry, peers: Peers | None, device: str
) -> Iterator[exchange.Opened]:
    """What the ranks have between them to share steps with, once that is sure to be of use."""
    if settings.parallel is None or peers is None:
        yield exchange.Opened()
        return
    check(settings.parallel, families)
    with exchange.opened(settings.parallel, peers, Path(settings.meet_in, "exchange"), device) as opened:
        yield opened


OWN_WORDS_S = 1.0


class Others:
    """The processes of the other ranks. `ended` is called, on a thread, when one ends that was not told to.

    Until there is somebody to tell, this process ends with it: whatever it is at, it would wait for that rank.
    """

    def __init__(self) -> None:
        self.ended: Callable[[str], None] | None = None
        self._leaving = False

    def start(self, follower: Follower, settings: WorkerSettings, rank: int) -> "subprocess.Popen[bytes]":
        read, write = os.pipe()
        command = follower(replace(settings, pulse=write), rank)
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, pass_fds=[write])
        os.close(write)
        watch = threading.Thread(
            target=self._watch, args=(process, rank, read, settings.heartbeat_s), name=f"rank {rank}", daemon=True
        )
        watch.start()
        return process

    def end(self, process: "subprocess.Popen[bytes]", grace_s: float = 2.0) -> None:
        self._leaving = True
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _watch(self, process: "subprocess.Popen[bytes]", rank: int, read: int, heartbeat_s: float) -> None:
        silent = pulse.watch(read, heartbeat_s)
        os.close(read)
        how = silent or f"ended with {process.wait()}"
        self._tell(f"rank {rank} {how}")

    def _tell(self, reason: str) -> None:
        if self.ended is None:  # this one may be failing of the same, and say more
            threading.Event().wait(OWN_WORDS_S)
        if self._leaving:
            return
        if self.ended is None:
            log.error("%s before the pool was ready", reason)
            os._exit(1)
        self.ended(reason)


@contextmanager
def _followers(
    settings: WorkerSettings, others: Others, follower: Follower, peers: Peers | None
) -> Iterator[Followers]:
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
            stack.callback(others.end, others.start(follower, of_rank, rank))
        yield Followers(sockets, settings.rank_timeout_s, peers)
