"""A worker's two threads: the link, which never computes, and the executor, which never waits for the network.

The link's thread owns the socket to the engine: it queues units, answers heartbeats while a step runs, and lets a
release overtake the units it makes pointless. The executor's thread owns the device.
"""

import os
import socket as hosts
import threading
from collections import deque
from collections.abc import Sequence

import zmq
from msgspec import Struct

from cards import wire
from cards.wire import (
    EngineMessage,
    Goodbye,
    Heartbeat,
    Hello,
    Introduce,
    ModelIdentity,
    Release,
    Released,
    Shutdown,
    UnitId,
    WorkUnit,
)
from workers.clock import monotonic
from workers.execute import Executor
from workers.ranks import Followers


class Identity(Struct, frozen=True, kw_only=True):
    """What a worker says of itself."""

    worker: str
    pool: str
    ranks: int
    credits: int
    memory_bytes: int
    models: tuple[ModelIdentity, ...]
    fingerprint: str


class Command(Struct, frozen=True):
    message: EngineMessage
    frames: Sequence[bytes] = ()
    dropped: int = 0
    """For a release: how many queued units it took out."""


class Inbox:
    """Commands between the threads, in order; a release takes the job's waiting units out."""

    def __init__(self) -> None:
        self._commands: deque[Command] = deque()
        self._changed = threading.Condition()

    def put(self, command: Command) -> None:
        with self._changed:
            self._commands.append(command)
            self._changed.notify()

    def release(self, release: Release) -> None:
        with self._changed:
            stale = [c for c in self._commands if _belongs(c, release)]
            self._commands = deque(c for c in self._commands if not _belongs(c, release))
            self._commands.appendleft(Command(release, dropped=len(stale)))
            self._changed.notify()

    def clear(self, last: Command) -> None:
        """Forget what waits: `last` is all there is to do. Nothing takes a shutdown back."""
        with self._changed:
            if not any(isinstance(command.message, Shutdown) for command in self._commands):
                self._commands = deque([last])
            self._changed.notify()

    def get(self) -> Command:
        with self._changed:
            self._changed.wait_for(lambda: self._commands)
            return self._commands.popleft()

    def units(self) -> int:
        with self._changed:
            return sum(isinstance(command.message, WorkUnit) for command in self._commands)


def _belongs(command: Command, release: Release) -> bool:
    unit = command.message
    return isinstance(unit, WorkUnit) and unit.id.job == release.job and unit.id.epoch <= release.epoch


class Link:
    """Serves one engine until it says to stop, or the ranks of this pool disagree."""

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
        self._running: UnitId | None = None
        self._outbox: deque[list[bytes]] = deque()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def run(self) -> str:
        """The link's thread. Returns why it ended."""
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
            if not thread.is_alive():
                self._context.term()

    def stop(self) -> None:
        """Finish the step that runs, say goodbye and return from `run`. May be called from a signal handler."""
        self._inbox.clear(Command(Shutdown()))

    def _serve(self, engine: "zmq.Socket[bytes]", done: "zmq.Socket[bytes]") -> str:
        poller = zmq.Poller()
        poller.register(done, zmq.POLLIN)
        self._outbox.append([wire.encode(self._hello())])
        beat_at = monotonic()
        while True:
            self._flush(engine)
            poller.register(engine, zmq.POLLIN | zmq.POLLOUT if self._outbox else zmq.POLLIN)
            ready = dict(poller.poll(max(0, int((beat_at - monotonic()) * 1000))))
            if done in ready:
                frames = done.recv_multipart()
                self._outbox.append(frames)
                if isinstance(message := wire.decode_worker_message(frames[0]), Goodbye):
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
        match message := wire.decode_engine_message(head):
            case Release():
                self._inbox.release(message)
            case Introduce() | Shutdown():
                self._inbox.clear(Command(message))
            case WorkUnit():
                self._inbox.put(Command(message, blobs))

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
                self._running = unit.id
                self._followers.broadcast(unit, command.frames)
                answer = self._executor.run(unit, list(command.frames))
                self._followers.agree(answer)
                self._running = None
                return [wire.encode(answer.result), *answer.frames]
            case Release(job=job, epoch=epoch):
                self._followers.broadcast(command.message)
                self._executor.resident.release(job)
                return [wire.encode(Released(job, epoch, command.dropped))]
            case Introduce():
                self._followers.broadcast(command.message)
                self._executor.resident.clear()
                return [wire.encode(self._hello())]
            case Shutdown():
                return None

    def _flush(self, engine: "zmq.Socket[bytes]") -> None:
        """Send what can leave now. What cannot waits: the engine counts on every result."""
        while self._outbox:
            try:
                engine.send_multipart(self._outbox[0], zmq.NOBLOCK)
            except zmq.Again:
                return
            self._outbox.popleft()

    def _hello(self) -> Hello:
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
        )

    def _beat(self) -> Heartbeat:
        held = self._executor.resident.held()
        return Heartbeat(self._identity.worker, self._running, self._inbox.units(), held.tensors, held.nbytes)
