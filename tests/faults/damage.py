"""A wire between a worker and its engine that damages the next messages of one direction: a bit of each."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import anyio.from_thread
from anyio.abc import SocketStream

from tests.chaos.hosts import free_port
from tests.chaos.wire import COMMAND, Frames, Wire, is_heartbeat


class DamagingWire(Wire):
    def __init__(self, port: int, engine_port: int) -> None:
        super().__init__(port, engine_port)
        self._engine_port = engine_port
        self.damaged = 0
        """Messages that were."""
        self._left = 0
        self._to_engine = False
        self._turn = threading.Lock()

    def damage(self, messages: int, *, to_engine: bool) -> None:
        """The next so many that are no heartbeats."""
        with self._turn:
            self._left, self._to_engine = messages, to_engine

    def carried(self, frames: Frames, source: SocketStream) -> Frames:
        """The first is damaged in its last frame, the second in its first, and so on."""
        from_engine = source.extra(anyio.abc.SocketAttribute.remote_port) == self._engine_port
        with self._turn:
            if not self._left or from_engine == self._to_engine or frames[0][0][0] & COMMAND or is_heartbeat(frames):
                return frames
            self._left -= 1
            self.damaged += 1
            place = -(self.damaged % 2)
            head, body = frames[place]
            middle = len(body) // 2
            flipped = body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
            return [(head, flipped) if number == place % len(frames) else one for number, one in enumerate(frames)]


@contextmanager
def damaging_wire(engine_port: int) -> Iterator[DamagingWire]:
    """It runs in a thread of its own."""
    wire = DamagingWire(free_port(), engine_port)
    with anyio.from_thread.start_blocking_portal() as portal:
        running = portal.start_task_soon(wire.run)
        try:
            yield wire
        finally:
            running.cancel()
