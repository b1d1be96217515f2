"""A worker's threads: the link, which never computes, the executor, which never waits for the network, and the keeper.

The link's thread listens to the engine: it queues units, sends heartbeats while a step runs, and lets a release
overtake the units it makes pointless. The executor's thread owns the device. What it made and what must be stored
first, the keeper's thread stores, while the executor goes on.
"""

import math
import os
import select
import socket as hosts
import threading
from collections.abc import Sequence
from functools import partial
from typing import NoReturn

import msgspec
import zmq
from msgspec import Struct
from msgspec.structs import replace

from cards import codec, wire
from cards.errors import WeightsChanged
from cards.wire import (
    Batch,
    CacheUse,
    Fetched,
    Goodbye,
    Heartbeat,
    Hello,
    Introduce,
    ModelIdentity,
    Refuse,
    Release,
    Released,
    Shutdown,
    Sleep,
    UnitId,
    Wake,
    WorkerMessage,
    WorkUnit,
)
from workers.caches import WEIGHTS
from workers.clock import monotonic
from workers.dealer import Dealer
from workers.errors import Refused
from workers.execute import Answer, Executor
from workers.inbox import Command, Inbox
from workers.keeper import Keeper, Said
from workers.ranks import Followers
from workers.transfers import Transfers

DAMAGED = "received bytes that are not what was sent"

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
    serves: tuple[str, ...] = ()
    """Roles, all if there are none."""


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
        transfers: Transfers | None = None,
    ) -> None:
        self._address = address
        self._identity = identity
        self._executor = executor
        self._followers = followers
        self._heartbeat_s = heartbeat_s
        self._transfers = transfers
        self._inbox = Inbox()
        executor.residency.queued = self._inbox.plans
        self._stopping = False
        self._why = "told to stop"
        self._running: tuple[UnitId, ...] = ()
        self._loaded: tuple[str, ...] = ()
        """As the last beat said."""
        self._broken: str | None = None
        self._refused: str | None = None
        self._ended: str | None = None
        """Why the executor has stopped, once it has said so."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def run(self) -> str:
        """The link's thread. Returns why it ended. Raises Refused."""
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, self._identity.worker.encode())
        socket.setsockopt(zmq.LINGER, 1000)
        socket.setsockopt(zmq.IMMEDIATE, 1)  # nothing piles up for an engine that is not there
        socket.connect(self._address)
        engine = Dealer(socket, self._take)
        keeper = Keeper(self._executor.keep, partial(_say, engine))
        threading.Thread(target=self._keep, args=(engine, keeper), name="keeper", daemon=True).start()
        thread = threading.Thread(target=self._execute, args=(engine, keeper), name="executor", daemon=True)
        thread.start()
        try:
            return self._serve(engine)
        finally:
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

    def _serve(self, engine: Dealer) -> str:
        poller = select.poll()
        poller.register(engine, select.POLLIN)
        _say(engine, self._hello())
        beat_at = monotonic()
        while True:
            due_ms = math.inf if engine.stuck else 1000 * (beat_at - monotonic())
            poller.poll(int(min(LOOK_UP_MS, max(0, due_ms))))
            engine.exchange()
            if self._ended is not None:
                return self._ended
            if self._broken is not None:
                _say(engine, Goodbye(self._broken))
                return self._broken
            if self._refused is not None:
                raise Refused(self._refused)
            if self._stopping:
                self._inbox.clear(Command(Shutdown()))
            if monotonic() >= beat_at and not engine.stuck:  # one that cannot leave now would say nothing later
                _say(engine, self._beat(engine))
                beat_at = monotonic() + self._heartbeat_s

    def _take(self, frames: list[bytes]) -> None:
        head, *blobs = frames
        try:
            message = wire.decode_engine_message(head)
        except msgspec.DecodeError:
            self._mistrust()
            return
        match message:
            case Release():
                self._inbox.release(message)
            case Introduce() | Shutdown():
                self._inbox.clear(Command(message))
            case WorkUnit() | Batch() if codec.are(blobs, wire.inline_of(message)):
                self._put(Command(message, blobs))
            case WorkUnit() | Batch():
                self._mistrust()
            case Sleep() | Wake():
                self._inbox.put(Command(message, blobs))
            case Refuse(reason=reason):
                self._refused = reason

    def _put(self, command: Command) -> None:
        coming = [unit for unit in command.units if unit.fetch is not None] if self._transfers is not None else []
        self._inbox.put(command, coming=[unit.id for unit in coming])
        for unit in coming:
            assert self._transfers is not None
            self._transfers.fetch(unit, lambda brought: self._inbox.arrived(brought.unit, brought.blobs))

    def _mistrust(self) -> None:
        """What was asked for is not known: all that is with this worker goes on elsewhere, and it leaves."""
        self._why = DAMAGED
        self._stopping = True

    def _execute(self, engine: Dealer, keeper: Keeper) -> None:
        """The executor's thread."""
        try:
            while not isinstance((command := self._next(engine, keeper)).message, Shutdown):
                said = self._obey(command)
                if self._executor.residency.resident() != self._loaded:  # which is to be known before what comes of it
                    _say(engine, self._beat(engine))
                if said is not None:
                    keeper.say(said)
            self._followers.broadcast(Shutdown())
            goodbye = Goodbye(self._why, clean=True)
        except BaseException as error:
            goodbye = _last_words(error)  # then the process ends with it
            raise
        finally:
            keeper.settle()
            self._leave(engine, goodbye)
            keeper.close()

    def _keep(self, engine: Dealer, keeper: Keeper) -> None:
        """The keeper's thread."""
        try:
            keeper.run()
        except BaseException as error:
            self._leave(engine, _last_words(error))
            raise

    def _leave(self, engine: Dealer, goodbye: Goodbye) -> None:
        _say(engine, goodbye)
        self._ended = goodbye.reason

    def _next(self, engine: Dealer, keeper: Keeper) -> Command:
        """The next command, once it is known outside what it is that will be running."""
        self._running = ()
        command = self._inbox.get()
        self._running = tuple(unit.id for unit in command.units)
        if self._running and (keeper.is_behind or command.fetched) and not engine.stuck:
            _say(engine, self._beat(engine))
        return command

    def _obey(self, command: Command) -> Said | None:
        """What to answer with, if there is an answer."""
        match command.message:
            case WorkUnit() as unit:
                self._followers.broadcast(unit, command.frames)
                return self._told([self._executor.execute(unit, list(command.frames))])
            case Batch() as batch:
                self._followers.broadcast(batch, command.frames)
                return self._told(self._executor.execute_batch(batch, command.frames))
            case Release(job=job, epoch=epoch):
                self._followers.broadcast(command.message)
                self._executor.resident.release(job, epoch)
                return Released(job, epoch, command.dropped)
            case Introduce(number=number):
                self._followers.broadcast(command.message)
                self._executor.resident.clear()
                return self._hello(number)
            case Sleep() | Wake() as told:
                self._followers.broadcast(told)
                self._executor.residency.obey(told)
                return None
            case Shutdown() | Refuse():  # which are others' to obey
                return None

    def _fell_back(self) -> bool:
        """Whether that step was the first without compiled blocks: it has other bits than the engine was told.

        It is told anew, and what it sent on the old word is for it to send again.
        """
        tier = self._executor.tier
        if tier is None or not tier.failed or self._identity.fingerprint == tier.eager:
            return False
        self._identity = replace(self._identity, fingerprint=tier.eager)
        self._executor.resident.clear()
        return True

    def _told(self, answers: Sequence[Answer]) -> Said:
        """Once all ranks agree on them."""
        for answer in answers:
            self._followers.agree(answer)
        return self._hello() if self._fell_back() else answers

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
            serves=me.serves,
            transfers=self._transfers.address if self._transfers is not None else "",
        )

    def _beat(self, engine: Dealer) -> Heartbeat:
        fetched = self._transfers.fetched if self._transfers is not None else Fetched()
        beat = heartbeat(self._executor, self._inbox.units(), engine.sent, engine.received, self._running)
        self._loaded = beat.resident
        return replace(beat, fetched=fetched)


def heartbeat(
    executor: Executor,
    queued: int,
    sent: int | None = None,
    received: int | None = None,
    running: tuple[UnitId, ...] = (),
) -> Heartbeat:
    held, residency = executor.resident.held(), executor.residency
    return Heartbeat(
        queued,
        held.tensors,
        held.nbytes,
        sent,
        received,
        running=running,
        caches={name: use for name, use in executor.caches.uses().items() if use != CacheUse()},
        resident=residency.resident(),
        weights=residency.weights.copy(),
        weights_bytes=executor.caches.budget(WEIGHTS),
    )


def _say(engine: Dealer, message: WorkerMessage, frames: Sequence[bytes] = ()) -> None:
    """From a hello on, both ends count what the other has said, heartbeats aside."""
    hello = isinstance(message, Hello)
    engine.send([wire.encode(message), *frames], counts=not isinstance(message, Heartbeat), anew=hello)


def _last_words(error: BaseException) -> Goodbye:
    """No job is to blame for files that are others now."""
    return Goodbye(f"{type(error).__name__}: {error}", clean=isinstance(error, WeightsChanged))


def _leave_the_executor_behind() -> NoReturn:
    """It is in the middle of something: what the link has said leaves first, and the process ends under it."""
    threading.Event().wait(0.2)
    os._exit(1)
