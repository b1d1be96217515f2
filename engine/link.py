"""The engine's end of the wire: messages to workers by name, messages from them with their frames."""

import logging
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import msgspec
import zmq
import zmq.asyncio
from msgspec import Struct

from cards import wire
from cards.wire import EngineMessage, WorkerMessage

log = logging.getLogger("keyframe.link")


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
    """A ROUTER. Unroutable sends are seen (`ROUTER_MANDATORY`); a worker that comes back takes its name over."""

    def __init__(self, socket: zmq.asyncio.Socket, address: str) -> None:
        self._socket = socket
        self.address = address

    async def send(self, worker: str, message: EngineMessage, frames: Sequence[bytes] = ()) -> bool:
        try:
            await self._socket.send_multipart([worker.encode(), wire.encode(message), *frames], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                return False
            raise
        return True

    async def receive(self) -> Arrived:
        while True:
            worker, head, *frames = await self._socket.recv_multipart()
            try:
                return Arrived(worker.decode(), wire.decode_worker_message(head), tuple(frames))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                log.warning("dropped a message that is none of ours from %r: %s", worker, error)


@asynccontextmanager
async def listen(address: str | None = None) -> AsyncIterator[ZmqLink]:
    """A link at `address`, or at one of its own that only this user can reach. Raises zmq.ZMQError if it is taken."""
    with (
        tempfile.TemporaryDirectory(prefix="keyframe-") as folder,
        zmq.asyncio.Context() as context,
        context.socket(zmq.ROUTER) as socket,
    ):
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        socket.setsockopt(zmq.LINGER, 500)
        socket.bind(address or f"ipc://{Path(folder) / 'workers'}")
        yield ZmqLink(socket, socket.getsockopt_string(zmq.LAST_ENDPOINT))
