"""The ranks of one pool act as one: rank 0 broadcasts every command, all execute the same order, and answers agree.

Rank 0 alone hears the engine, decides and stores blobs. An abort is a place in the order: a release or a shutdown is
obeyed after the same unit on all ranks, and no rank decides anything by its own clock. After each unit another rank
says the digest of all that it was told until then and of what it made; one that says something else, or nothing, ends
the pool, since every later step would be built on it.
"""

import threading
from collections.abc import Callable, Sequence
from functools import partial

import blake3
import msgspec
import zmq
from msgspec import Struct

from cards import codec, wire
from cards.wire import Batch, EngineMessage, Release, Shutdown, Sleep, Wake, WorkUnit
from workers.clock import monotonic
from workers.errors import ExchangeBroken, RanksDiverged, RankSilent, RanksUnlike
from workers.execute import Answer, Executor
from workers.peers import Peers

HEARD_S = 0.3
"""How long a rank that gives up stays: its reason is to be heard before that it has ended."""


class Word(Struct, frozen=True):
    """What a rank says after a unit. `failed` is its error, if its answer is one, `broken` why it is about to end."""

    told: str
    made: str = ""
    failed: str = ""
    broken: str = ""

    def agrees(self, other: "Word") -> bool:
        """Errors of one kind are one, whatever they say: of a device, an address or bytes that were free."""
        return (self.told, self.made) == (other.told, other.made)


def summary(answer: Answer) -> str:
    """What ranks compare: everything that a step made, or the kind of its error, and nothing of when or where."""
    result = answer.result
    kind = result.error and result.error.kind
    made = (result.id, result.tensors, result.scalars, result.artifacts, kind)
    return codec.digest(msgspec.msgpack.encode(made, order="deterministic"))


class Told:
    """All commands until now, as one digest, and their number: equal on ranks that do the same."""

    def __init__(self) -> None:
        self.commands = 0
        self._digest = blake3.blake3()

    def take(self, parts: Sequence[bytes]) -> None:
        self.commands += 1
        for part in (len(parts).to_bytes(4, "little"), *parts):
            self._digest.update(len(part).to_bytes(8, "little"))
            self._digest.update(part)

    def word(self, answer: Answer) -> Word:
        error = answer.result.error
        return Word(self._digest.hexdigest(), summary(answer), error.message if error else "")

    def last_word(self, why: ExchangeBroken) -> Word:
        return Word(self._digest.hexdigest(), broken=str(why))


class Followers:
    """Rank 0's side: one socket for each other rank, in rank order. `peers` are those that it shares steps with."""

    def __init__(self, sockets: Sequence["zmq.Socket[bytes]"], timeout_s: float, peers: Peers | None = None) -> None:
        for socket in sockets:
            socket.setsockopt(zmq.SNDTIMEO, int(timeout_s * 1000))
        self._sockets = sockets
        self._timeout_s = timeout_s
        self._peers = peers
        self._told = Told()

    def broadcast(self, command: EngineMessage, frames: Sequence[bytes] = ()) -> None:
        """Raises RankSilent for one that takes nothing in any more."""
        if not self._sockets:
            return
        parts = [wire.encode(command), *frames]
        _take(parts, self._told, self._peers)
        for rank, socket in enumerate(self._sockets, start=1):
            try:
                socket.send_multipart(parts)
            except zmq.Again as error:
                raise RankSilent([rank], self._timeout_s) from error

    def agree(self, answer: Answer) -> None:
        """Wait for every rank's word. Raises RankSilent, RanksDiverged or ExchangeBroken."""
        if not self._sockets:
            return
        mine = self._told.word(answer)
        _end(mine, self._peers)
        for rank, data in enumerate(self._collect(), start=1):
            theirs = msgspec.msgpack.decode(data, type=Word)
            if theirs.broken:
                raise ExchangeBroken([rank], f"given the step up: {theirs.broken}")
            if not theirs.agrees(mine):
                raise RanksDiverged(rank, *_difference(theirs, mine))

    def ready(self, fingerprint: str = "") -> None:
        """Wait until every rank has loaded its models. Raises RankSilent, RanksUnlike."""
        for rank, theirs in enumerate(self._collect(), start=1):
            if theirs.decode() != fingerprint:
                raise RanksUnlike(rank, fingerprint, theirs.decode())

    def _collect(self) -> list[bytes]:
        """From all of them, within one time."""
        poller = zmq.Poller()
        waiting = {socket: rank for rank, socket in enumerate(self._sockets, start=1)}
        for socket in waiting:
            poller.register(socket, zmq.POLLIN)
        answers: dict[int, bytes] = {}
        deadline = monotonic() + self._timeout_s
        while waiting:
            came = poller.poll(max(0, int((deadline - monotonic()) * 1000)))
            if not came:
                raise RankSilent(sorted(waiting.values()), self._timeout_s)
            for socket, _ in came:
                answers[waiting.pop(socket)] = socket.recv()
                poller.unregister(socket)
        return [answers[rank] for rank in sorted(answers)]


def follow(socket: "zmq.Socket[bytes]", executor: Executor, fingerprint: str = "", peers: Peers | None = None) -> str:
    """Another rank's whole life. Says what it computes with, then executes what rank 0 says. Returns why it ended."""
    told = Told()
    socket.send(fingerprint.encode())
    while True:
        head, *frames = parts = socket.recv_multipart()
        _take(parts, told, peers)
        match wire.decode_engine_message(head):
            case WorkUnit() as unit:
                if (broken := _work(socket, told, peers, partial(_run, executor, unit, frames))) is not None:
                    return broken
            case Batch() as batch:
                if (broken := _work(socket, told, peers, partial(executor.run_batch, batch, frames))) is not None:
                    return broken
            case Release(job=job, epoch=epoch):
                executor.resident.release(job, epoch)
            case Sleep() | Wake() as message:
                executor.residency.obey(message)
            case Shutdown():
                return "rank 0 told it to stop"
            case _:
                executor.resident.clear()


def _take(parts: Sequence[bytes], told: Told, peers: Peers | None) -> None:
    told.take(parts)
    if peers is not None:
        peers.begin(told.commands)


def _work(
    socket: "zmq.Socket[bytes]", told: Told, peers: Peers | None, run: Callable[[], Sequence[Answer]]
) -> str | None:
    """Execute units and say a word after each. Returns why this rank gives up, if it does."""
    for word in _words(told, run):
        _end(word, peers)
        socket.send(msgspec.msgpack.encode(word))
        if word.broken:
            threading.Event().wait(HEARD_S)
            return word.broken
    return None


def _run(executor: Executor, unit: WorkUnit, frames: list[bytes]) -> list[Answer]:
    return [executor.run(unit, frames)]


def _words(told: Told, run: Callable[[], Sequence[Answer]]) -> list[Word]:
    """One for each unit that was run."""
    try:
        return [told.word(answer) for answer in run()]
    except ExchangeBroken as error:
        return [told.last_word(error)]


def _end(word: Word, peers: Peers | None) -> None:
    if peers is not None:
        peers.end(_how(word))


def _difference(theirs: Word, mine: Word) -> tuple[str, str]:
    if theirs.told != mine.told:
        return f"was told other commands, or in another order, {theirs.told[:16]}", f"was told {mine.told[:16]}"
    return _how(theirs), _how(mine)


def _how(word: Word) -> str:
    if word.broken:
        return word.broken
    return f"failed with {word.failed}" if word.failed else f"made {word.made[:16]}"
