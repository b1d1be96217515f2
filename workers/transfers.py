"""A worker's thread for transfers: it gives other workers what this one holds, and fetches what this one lacks."""

import logging
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from socket import socketpair
from typing import TYPE_CHECKING

import msgspec
import zmq
from msgspec import Struct

from cards import codec
from cards.codec import Parts
from cards.wire import Fetched, UnitId, WorkUnit
from workers import transfer
from workers.clock import monotonic
from workers.own_folder import own_folder
from workers.transfer import AskerMessage, HolderMessage, Lender, Memory, Shared
from workers.transfer_fetcher import Brought, Fetcher

if TYPE_CHECKING:
    import torch

log = logging.getLogger("keyframe.workers")

LOOK_UP_MS = 250
"""How often it looks whether somebody has been silent for too long, while something is under way."""

Find = Callable[[str, str], "torch.Tensor | None"]
"""A tensor by job and digest, on any thread."""


class Wanted(Struct, frozen=True):
    unit: WorkUnit
    arrived: Callable[[Brought], None]


class Transfers:
    """`address` is where others ask. `fetch`, `fetched` and `close` are for other threads."""

    def __init__(self, find: Find, address: str, place: str, patience_s: float = transfer.PATIENCE_S) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._askers = self._context.socket(zmq.ROUTER)
        self._askers.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._askers.setsockopt(zmq.LINGER, 0)
        self._askers.bind(address)
        self.address = self._askers.getsockopt_string(zmq.LAST_ENDPOINT)
        self._lender = Lender(partial(_parts, find), _sharing(), place, patience_s=patience_s)
        self._fetcher = Fetcher(read if _sharing() else None, place, patience_s=patience_s)
        self._patience_s = patience_s
        self._holders: dict[str, tuple[zmq.Socket[bytes], float]] = {}
        """And when something was last sent there."""
        self._wanted: SimpleQueue[Wanted | None] = SimpleQueue()
        self._arrived: dict[UnitId, Callable[[Brought], None]] = {}
        self._ended = False
        self._ending = threading.Lock()
        self._woken, self._wake = socketpair()
        self._woken.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="transfers", daemon=True)

    @property
    def fetched(self) -> Fetched:
        return self._fetcher.fetched

    def start(self) -> None:
        self._thread.start()

    def fetch(self, unit: WorkUnit, arrived: Callable[[Brought], None]) -> None:
        """`arrived` is called on the thread of transfers, with what could be had, within seconds of silence."""
        self._tell(Wanted(unit, arrived))
        if self._ended:
            self._bring_nothing()

    def close(self) -> None:
        self._tell(None)
        self._thread.join()
        self._wake.close()
        self._woken.close()

    def _tell(self, wanted: Wanted | None) -> None:
        self._wanted.put(wanted)
        with suppress(OSError):  # it has ended
            self._wake.send(b"!")

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        finally:
            self._ended = True
            self._bring_nothing()
            self._lender.close()
            self._context.destroy(linger=0)

    def _bring_nothing(self) -> None:
        """What still waits, or would from now on, goes on without transfers. On whichever thread sees that first."""
        with self._ending:
            with suppress(Empty):
                while True:
                    if (wanted := self._wanted.get_nowait()) is not None:
                        self._arrived[wanted.unit.id] = wanted.arrived
            while self._arrived:
                unit, arrived = self._arrived.popitem()
                arrived(Brought(unit, {}))

    def _turn(self) -> bool:
        """Wait for something to happen and see to it. False at the end."""
        poller = zmq.Poller()
        for one in (self._woken, self._askers, *(socket for socket, _ in self._holders.values())):
            poller.register(one, zmq.POLLIN)
        busy = self._lender.busy or self._fetcher.busy or self._holders
        poller.poll(LOOK_UP_MS if busy else None)
        going_on = self._take_wanted()
        self._hear_askers()
        for address, (socket, _) in list(self._holders.items()):
            self._hear_holder(address, socket)
        now = monotonic()
        self._lender.expire(now)
        self._fetcher.expire(now)
        self._answer()
        self._ask(now)
        self._part_with_holders(now)
        while self._fetcher.brought:
            brought = self._fetcher.brought.popleft()
            if (arrived := self._arrived.pop(brought.unit, None)) is not None:  # else it was asked for twice
                arrived(brought)
        return going_on

    def _take_wanted(self) -> bool:
        with suppress(BlockingIOError):
            self._woken.recv(4096)
        with suppress(Empty):
            while (wanted := self._wanted.get_nowait()) is not None:
                assert wanted.unit.fetch is not None
                self._arrived[wanted.unit.id] = wanted.arrived
                self._fetcher.begin(wanted.unit.id, wanted.unit.fetch, monotonic())
            return False
        return True

    def _hear_askers(self) -> None:
        with suppress(zmq.Again):
            while True:
                asker, head, *_ = self._askers.recv_multipart(zmq.NOBLOCK)
                try:
                    message: AskerMessage = transfer.decode_asker_message(head)
                except msgspec.DecodeError as error:
                    log.warning("dropped a message of another worker that is none of ours: %s", error)
                    continue
                self._lender.heard(asker, message, monotonic())
                self._answer()

    def _hear_holder(self, address: str, socket: "zmq.Socket[bytes]") -> None:
        with suppress(zmq.Again):
            while True:
                head, *frames = socket.recv_multipart(zmq.NOBLOCK)
                try:
                    message: HolderMessage = transfer.decode_holder_message(head)
                except msgspec.DecodeError as error:
                    log.warning("dropped a message of another worker that is none of ours: %s", error)
                    continue
                self._fetcher.heard(address, message, frames, monotonic())
                self._ask(monotonic())

    def _answer(self) -> None:
        while self._lender.outbox:
            asker, message, frames = self._lender.outbox.popleft()
            try:
                self._askers.send_multipart([asker, transfer.encode(message), *frames], zmq.NOBLOCK)
            except zmq.ZMQError as error:
                if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                    raise
                self._lender.lost(asker)

    def _ask(self, now: float) -> None:
        while self._fetcher.outbox:
            address, message = self._fetcher.outbox.popleft()
            socket = self._holders[address][0] if address in self._holders else self._connect(address)
            self._holders[address] = (socket, now)
            with suppress(zmq.Again):  # then the holder is silent for too long
                socket.send(transfer.encode(message), zmq.NOBLOCK)

    def _part_with_holders(self, now: float) -> None:
        for address, (socket, last) in list(self._holders.items()):
            if now - last > self._patience_s and not self._fetcher.asks(address):
                socket.close()
                del self._holders[address]

    def _connect(self, address: str) -> "zmq.Socket[bytes]":
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        with suppress(zmq.ZMQError):  # an address that is none here: nothing will come from it
            socket.connect(address)
        return socket


@contextmanager
def transferring(
    find: Find, address: str = "", *, place: str | None = None, patience_s: float = transfer.PATIENCE_S
) -> Iterator[Transfers]:
    """A thread of transfers, for as long as this is entered. Without an address only workers on this machine reach it.

    Raises zmq.ZMQError for an address that cannot be taken.
    """
    with own_folder("transfers") as folder:
        address = address or f"ipc://{folder / 'askers'}"
        transfers = Transfers(find, address, this_place() if place is None else place, patience_s)
        transfers.start()
        try:
            yield transfers
        finally:
            transfers.close()


def this_place() -> str:
    """Names the machine, and on it the processes that see each other; empty where that cannot be told."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


class Unnamed:
    """Memory without a name: it is gone with the last process that has it open, however that ends."""

    def __init__(self, parts: Parts) -> None:
        self.pid = os.getpid()
        self.fd = os.memfd_create("tensor")
        try:
            for part in parts:
                _write(self.fd, memoryview(part))
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        os.close(self.fd)


def read(shared: Shared) -> bytes:
    """What another process has in such memory. Raises OSError; what is there may be something else."""
    fd = os.open(f"/proc/{shared.pid}/fd/{shared.fd}", os.O_RDONLY | os.O_NONBLOCK)
    with open(fd, "rb", buffering=0) as file:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode) or about.st_size != shared.total:
            raise OSError(f"what process {shared.pid} has open as {shared.fd} is no tensor")
        return file.readall()


def _sharing() -> Callable[[Parts], Memory] | None:
    return Unnamed if hasattr(os, "memfd_create") else None


def _write(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _parts(find: Find, job: str, digest: str) -> Parts | None:
    try:
        tensor = find(job, digest)
        return codec.parts(tensor) if tensor is not None else None
    except (RuntimeError, MemoryError) as error:  # the device's, or no memory to copy it to
        log.warning("cannot give %s to another worker: %s", digest[:16], error)
        return None
