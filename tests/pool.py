"""A worker and its other ranks as real processes, with a test in the place of the engine."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil
import zmq

from cards import parallel, wire
from cards.wire import EngineMessage, Heartbeat, Hello, StepResult, WorkerMessage, WorkUnit
from ops import worker
from workers.process import WorkerSettings

PATIENCE_S = 90.0

Message = TypeVar("Message", bound=WorkerMessage)


class Pool:
    def __init__(self, socket: "zmq.Socket[bytes]", process: "subprocess.Popen[bytes]") -> None:
        self._socket = socket
        self._process = process
        self._worker = b""
        self.hello = self.hear(Hello)

    def send(self, message: EngineMessage, frames: Sequence[bytes] = ()) -> None:
        self._socket.send_multipart([self._worker, wire.encode(message), *frames])

    def hear(self, kind: type[Message]) -> Message:
        """What it says next, heartbeats aside, which must be of this kind."""
        while True:
            assert self._socket.poll(PATIENCE_S * 1000), f"no {kind.__name__}"
            self._worker, head, *_ = self._socket.recv_multipart()
            message = wire.decode_worker_message(head)
            if not isinstance(message, Heartbeat):
                assert isinstance(message, kind), message
                return message

    def run(self, unit: WorkUnit, frames: Sequence[bytes] = ()) -> StepResult:
        self.send(unit, frames)
        return self.hear(StepResult)

    def rank(self, number: int) -> psutil.Process:
        """The process of another rank."""
        others = psutil.Process(self._process.pid).children()
        [found] = [one for one in others if one.cmdline()[3] == str(number)]
        return found


@contextmanager
def pool(folder: Path, plan: str, **settings: Any) -> Iterator[Pool]:
    """Ranks that share by this plan, once all are ready. They are gone afterwards."""
    degrees = parallel.parse(plan)
    address = f"ipc://{folder}/w"
    one = WorkerSettings(
        connect=address, parallel=degrees, ranks=degrees.ranks, heartbeat_s=60.0, parent=os.getpid(), **settings
    )
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(address)
        process = subprocess.Popen(worker.command(one, str(folder / "blobs")))
        try:
            yield Pool(socket, process)
        finally:
            process.kill()
            process.wait()
