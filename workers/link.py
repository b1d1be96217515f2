"""A worker's two threads: the link, which never computes, and the executor, which never waits for the network.

The link's thread owns the socket to the engine: it queues units, answers heartbeats while a step runs, and lets a
release overtake the units it makes pointless. The executor's thread owns the device.
"""

import os
import socket as hosts
import threading
from collections import deque
from typing import NoReturn

import zmq
from msgspec import Struct

from cards import wire
from cards.wire import (
    Goodbye,
    Heartbeat,
    Hello,
    Introduce,
    ModelIdentity,
    Refuse,
    Release,
    Released,
    Shutdown,
    WorkerMessage,
    WorkUnit,
)
from workers.clock import monotonic
from workers.errors import Refused
from workers.execute import Executor
from workers.inbox import Command, Inbox
from workers.ranks import Followers

LOOK_UP_MS = 100
"""How often the link looks whether it was told to stop, if nothing else happens."""


class Identity(Struct, frozen=True, kw_only=True):
    """What a worker says of itself."""

    worker: str
    pool: str
    ranks: int
    credits: int
    memory_bytes: int
    models: tuple[ModelIdentity, ...]
    fingerprint: str
    blobs: str = ""


class Link:
    """Serves one engine until it says to stop, or the ranks of this pool cannot go on together."""

    def __init__(
        self,
        address: str,
        identity: Identity,
        executor: Executor,
        followers: Followers,
        *,
        heartbeat_s: float = 1.0,
    ) -> None:
        self._address = address
        self._identity = identity
        self._executor = executor
        self._followers = followers
        self._heartbeat_s = heartbeat_s
        self._inbox = Inbox()
        self._stopping = False
        self._broken: str | None = None
        self._refused: str | None = None
        self._sent = self._received = 0
        self._outbox: deque[list[bytes]] = deque()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def run(self) -> str:
        """The link's thread. Returns why it ended. Raises Refused."""
        engine = self._context.socket(zmq.DEALER)
        engine.setsockopt(zmq.IDENTITY, self._identity.worker.encode())
        engine.setsockopt(zmq.LINGER, 1000)
        engine.setsockopt(zmq.IMMEDIATE, 1)  # nothing piles up for an engine that is not there
        engine.connect(self._address)
        done = self._context.socket(zmq.PAIR)
        done.bind("inproc://done")
        thread = threading.Thread(target=self._execute, name="executor", daemon=True)
        thread.start()
        try:
            return self._serve(engine, done)
        finally:
            done.close(0)
            engine.close()
            thread.join(1.0)  # one that has said goodbye is about to end, and the goodbye leaves with the context
            if self._broken is not None:
                _leave_the_executor_behind()
            if not thread.is_alive():
                self._context.term()

    def stop(self) -> None:
        """Finish the step that runs, say goodbye and return from `run`. May be called from a signal handler."""
        self._stopping = True

    def abandon(self, reason: str) -> None:
        """Say goodbye and end the process at once: the executor may be waiting for what will not come. Thread-safe."""
        self._broken = reason

    def _serve(self, engine: "zmq.Socket[bytes]", done: "zmq.Socket[bytes]") -> str:
        poller = zmq.Poller()
        poller.register(done, zmq.POLLIN)
        self._outbox.append([wire.encode(self._hello())])
        beat_at = monotonic()
        while True:
            self._flush(engine)
            poller.register(engine, zmq.POLLIN | zmq.POLLOUT if self._outbox else zmq.POLLIN)
            ready = dict(poller.poll(min(LOOK_UP_MS, max(0, int((beat_at - monotonic()) * 1000)))))
            if self._broken is not None:
                self._outbox.append([wire.encode(Goodbye(self._broken))])
                self._flush(engine)
                return self._broken
            if self._refused is not None:
                raise Refused(self._refused)
            if self._stopping:
                self._inbox.clear(Command(Shutdown()))
            if done in ready:
                frames = done.recv_multipart()
                self._outbox.append(frames)
                message = wire.decode_worker_message(frames[0])
                self._count(message)
                if isinstance(message, Goodbye):
                    self._flush(engine)
                    return message.reason
            if ready.get(engine, 0) & zmq.POLLIN:
                self._take(engine.recv_multipart())
            if monotonic() >= beat_at:
                if not self._outbox:  # a beat that cannot leave now says nothing later
                    self._outbox.append([wire.encode(self._beat())])
                beat_at = monotonic() + self._heartbeat_s

    def _take(self, frames: list[bytes]) -> None:
        head, *blobs = frames
        self._received += 1
        match message := wire.decode_engine_message(head):
            case Release():
                self._inbox.release(message)
            case Introduce() | Shutdown():
                self._inbox.clear(Command(message))
            case WorkUnit():
                self._inbox.put(Command(message, blobs))
            case Refuse(reason=reason):
                self._refused = reason

    def _count(self, message: WorkerMessage) -> None:
        if isinstance(message, Hello):
            self._sent = self._received = 0
        else:
            self._sent += 1

    def _execute(self) -> None:
        """The executor's thread."""
        done = self._context.socket(zmq.PAIR)
        done.connect("inproc://done")
        try:
            while (answer := self._obey(self._inbox.get())) is not None:
                done.send_multipart(answer)
            self._followers.broadcast(Shutdown())
            done.send(wire.encode(Goodbye("told to stop", clean=True)))
        except BaseException as error:
            done.send(wire.encode(Goodbye(f"{type(error).__name__}: {error}")))  # then the process ends with it
            raise
        finally:
            done.close()

    def _obey(self, command: Command) -> list[bytes] | None:
        """The frames to answer with, or None to stop."""
        match command.message:
            case WorkUnit() as unit:
                self._followers.broadcast(unit, command.frames)
                answer = self._executor.run(unit, list(command.frames))
                self._followers.agree(answer)
                return [wire.encode(answer.result), *answer.frames]
            case Release(job=job, epoch=epoch):
                self._followers.broadcast(command.message)
                self._executor.resident.release(job)
                return [wire.encode(Released(job, epoch, command.dropped))]
            case Introduce(number=number):
                self._followers.broadcast(command.message)
                self._executor.resident.clear()
                return [wire.encode(self._hello(number))]
            case Shutdown() | Refuse():
                return None

    def _flush(self, engine: "zmq.Socket[bytes]") -> None:
        """Send what can leave now. What cannot waits: the engine counts on every result."""
        while self._outbox:
            try:
                engine.send_multipart(self._outbox[0], zmq.NOBLOCK)
            except zmq.Again:
                return
            self._outbox.popleft()

    def _hello(self, answers: int = 0) -> Hello:
        me = self._identity
        return Hello(
            worker=me.worker,
            pool=me.pool,
            pid=os.getpid(),
            host=hosts.gethostname(),
            ranks=me.ranks,
            credits=me.credits,
            memory_bytes=me.memory_bytes,
            models=me.models,
            fingerprint=me.fingerprint,
            blobs=me.blobs,
            answers=answers,
        )

    def _beat(self) -> Heartbeat:
        held = self._executor.resident.held()
        return Heartbeat(self._inbox.units(), held.tensors, held.nbytes, self._sent, self._received)


def _leave_the_executor_behind() -> NoReturn:
    """It is in the middle of something: what the link has said leaves first, and the process ends under it."""
    threading.Event().wait(0.2)
    os._exit(1)
