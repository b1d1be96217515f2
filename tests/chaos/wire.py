"""A wire between a worker and its engine that can lose messages, hold them up, or be cut.

It knows where a message ends in ZMTP 3 (RFC 23), so that what is lost is whole messages and the rest stays sound.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum, auto
from typing import TypeAlias

import anyio
from anyio.abc import SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from cards import wire
from cards.wire import Heartbeat

GREETING = 64
MORE, LONG, COMMAND = 1, 2, 4

Frames: TypeAlias = list[tuple[bytes, bytes]]
"""A message: each of its frames, with what stands before it on the wire."""

BROKEN = (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError)


class Trouble(Enum):
    NONE = auto()
    NO_HEARTBEATS = auto()
    NOTHING_ARRIVES = auto()
    STALLED = auto()
    CUT = auto()


class Wire:
    """Workers connect to `port`; what they say goes on to the engine's port."""

    def __init__(self, port: int, engine_port: int) -> None:
        self.port = port
        self._engine_port = engine_port
        self._trouble = Trouble.NONE
        self._over = anyio.Event()
        self._lines: set[anyio.CancelScope] = set()

    @asynccontextmanager
    async def trouble(self, kind: Trouble) -> AsyncIterator[None]:
        """For as long as this is entered; the last one to begin decides which."""
        self._trouble, mine = kind, kind
        if kind is Trouble.CUT:
            for line in self._lines:
                line.cancel()
        try:
            yield
        finally:
            if self._trouble is mine:
                self._trouble = Trouble.NONE
                self._over.set()
                self._over = anyio.Event()

    async def run(self) -> None:
        async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=self.port) as listener:
            await listener.serve(self._connect)

    async def _connect(self, worker: SocketStream) -> None:
        async with worker:
            if self._trouble is Trouble.CUT:
                return
            try:
                engine = await anyio.connect_tcp("127.0.0.1", self._engine_port)
            except OSError:
                return  # there is no engine: the worker tries again
            async with engine, anyio.create_task_group() as tasks:
                self._lines.add(tasks.cancel_scope)
                tasks.start_soon(self._carry, worker, engine, tasks.cancel_scope)
                tasks.start_soon(self._carry, engine, worker, tasks.cancel_scope)
            self._lines.discard(tasks.cancel_scope)

    async def _carry(self, source: SocketStream, sink: SocketStream, line: anyio.CancelScope) -> None:
        stream = BufferedByteReceiveStream(source)
        try:
            await _greet(stream, sink)
            while True:
                frames = await _message(stream)
                while self._trouble is Trouble.STALLED:
                    await self._over.wait()
                if not self._loses(frames):
                    await sink.send(b"".join(head + body for head, body in self.carried(frames, source)))
        except BROKEN:
            line.cancel()

    def carried(self, frames: Frames, source: SocketStream) -> Frames:
        """What comes out at the other end of a message that is not lost."""
        return frames

    def _loses(self, frames: Frames) -> bool:
        if frames[0][0][0] & COMMAND:
            return False
        if self._trouble is Trouble.NO_HEARTBEATS:
            return is_heartbeat(frames)
        return self._trouble is Trouble.NOTHING_ARRIVES


async def _greet(source: BufferedByteReceiveStream, sink: SocketStream) -> None:
    """In the pieces in which it comes: each end waits for a part of the other's."""
    left = GREETING
    while left:
        piece = await source.receive(left)
        await sink.send(piece)
        left -= len(piece)


async def _message(stream: BufferedByteReceiveStream) -> Frames:
    frames: Frames = []
    while not frames or frames[-1][0][0] & MORE:
        flags = await stream.receive_exactly(1)
        size = await stream.receive_exactly(8 if flags[0] & LONG else 1)
        frames.append((flags + size, await stream.receive_exactly(int.from_bytes(size, "big"))))
    return frames


def is_heartbeat(frames: Frames) -> bool:
    try:
        return isinstance(wire.decode_worker_message(frames[0][1]), Heartbeat)
    except wire.msgspec.DecodeError:
        return False  # it is on its way to a worker
