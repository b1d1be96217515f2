"""The socket to the engine, for two threads: the executor hands in what it made, the link sees to all else."""

import threading
from collections import deque
from collections.abc import Callable

import zmq


class Dealer:
    """One thread at a time is at the socket, and none waits there. `take` gets the frames of each message in order.

    The descriptor says that something has happened, once: whoever is at the socket takes that in, and so must also
    take in what has arrived.
    """

    def __init__(self, socket: "zmq.Socket[bytes]", take: Callable[[list[bytes]], None]) -> None:
        self._socket = socket
        self._take = take
        self._turn = threading.Lock()
        self._outbox: deque[list[bytes]] = deque()

    def fileno(self) -> int:
        return int(self._socket.fileno())

    @property
    def stuck(self) -> bool:
        """Whether something waits to leave."""
        return bool(self._outbox)

    def send(self, frames: list[bytes]) -> None:
        """What cannot leave now waits, for as long as it takes: the engine counts on every result."""
        self._outbox.append(frames)
        self.exchange()

    def exchange(self) -> None:
        """Let out what can leave and take in what is there."""
        with self._turn:
            if self._socket.closed:
                return
            self._flush()
            while int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                self._take(self._socket.recv_multipart(zmq.NOBLOCK))

    def close(self) -> None:
        with self._turn:
            self._socket.close()

    def _flush(self) -> None:
        while self._outbox:
            try:
                self._socket.send_multipart(self._outbox[0], zmq.NOBLOCK)
            except zmq.Again:
                return
            self._outbox.popleft()
