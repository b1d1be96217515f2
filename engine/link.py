"""The engine's end of the wire: messages to workers by name, messages from them with their frames."""

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

import msgspec
import zmq
from msgspec import Struct

from cards import wire
from cards.wire import EngineMessage, WorkerMessage

log = logging.getLogger("keyframe.link")

AT_ONCE = 64
"""Messages that are taken in before the rest of the engine has a turn."""


class Arrived(Struct, frozen=True):
    worker: str
    message: WorkerMessage
    frames: tuple[bytes, ...] = ()


class Link(Protocol):
    """What the engine needs of a wire, and no more."""

    async def send(self, worker: str, message: EngineMessage, frames: Sequence[bytes] = ()) -> bool:
        """Whether there is such a worker; never waits for one that is slow."""
        ...

    async def receive(self) -> Arrived: ...


class ZmqLink:
    """A ROUTER. Unroutable sends are seen (`ROUTER_MANDATORY`); a worker that comes back takes its name over.

    Its descriptor says that something has happened, once: whoever uses the socket may take that in, so `receive` looks
    again after every send.
    """

    def __init__(self, socket: "zmq.Socket[bytes]", address: str) -> None:
        self._socket = socket
        self._news = asyncio.Event()
        self._at_once = 0
        self.address = address

    async def send(self, worker: str, message: EngineMessage, frames: Sequence[bytes] = ()) -> bool:
        self._news.set()
        try:
            self._socket.send_multipart([worker.encode(), wire.encode(message), *frames], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                return False
            raise
        return True

    async def receive(self) -> Arrived:
        while True:
            await self._let_others()
            self._news.clear()
            try:
                worker, head, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
                return Arrived(worker.decode(), wire.decode_worker_message(head), tuple(frames))
            except zmq.Again:
                self._at_once = 0
                await self._news.wait()
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                log.warning("dropped a message that is none of ours from %r: %s", worker, error)

    async def _let_others(self) -> None:
        """Workers that always have something to say must not keep the loop for themselves."""
        self._at_once += 1
        if self._at_once > AT_ONCE:
            self._at_once = 0
            await asyncio.sleep(0)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Wake `receive` for as long as this is entered."""
        loop = asyncio.get_running_loop()
        descriptor = self._socket.fileno()
        loop.add_reader(descriptor, self._look)
        try:
            yield
        finally:
            loop.remove_reader(descriptor)

    def _look(self) -> None:
        if int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:  # asking also takes the descriptor's news in
            self._news.set()


@contextmanager
def _own_address() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="keyframe-") as folder:
        yield f"ipc://{Path(folder) / 'workers'}"


@asynccontextmanager
async def listen(address: str | None = None) -> AsyncIterator[ZmqLink]:
    """A link at `address`, or at one of its own that only this user can reach. Raises zmq.ZMQError if it is taken."""
    with (
        nullcontext(address) if address is not None else _own_address() as place,
        zmq.Context() as context,
        context.socket(zmq.ROUTER) as socket,
    ):
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        socket.setsockopt(zmq.LINGER, 500)
        socket.bind(place)
        link = ZmqLink(socket, socket.getsockopt_string(zmq.LAST_ENDPOINT))
        with link.watched():
            yield link
