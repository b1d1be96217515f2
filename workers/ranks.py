"""The ranks of one pool act as one: rank 0 broadcasts every command, all execute the same order, and answers agree.

Rank 0 speaks to the engine and alone stores blobs. Another rank says only the digest of what it made; a rank that
says something else, or nothing, ends the pool, since every later step would be built on it.
"""

from collections.abc import Sequence

import msgspec
import zmq

from cards import codec, wire
from cards.wire import Batch, EngineMessage, Release, Shutdown, WorkUnit
from workers.errors import RanksDiverged, RankSilent, RanksUnlike
from workers.execute import Answer, Executor


def summary(answer: Answer) -> str:
    """What ranks compare: everything that a step made, and nothing of when."""
    result = answer.result
    made = (result.id, result.tensors, result.scalars, result.artifacts, result.error)
    return codec.digest(msgspec.msgpack.encode(made, order="deterministic"))


class Followers:
    """Rank 0's side: one socket for each other rank, in rank order."""

    def __init__(self, sockets: Sequence["zmq.Socket[bytes]"], timeout_s: float) -> None:
        for socket in sockets:
            socket.setsockopt(zmq.SNDTIMEO, int(timeout_s * 1000))
        self._sockets = sockets
        self._timeout_s = timeout_s

    def broadcast(self, command: EngineMessage, frames: Sequence[bytes] = ()) -> None:
        """Raises RankSilent for one that takes nothing in any more."""
        if not self._sockets:
            return
        parts = [wire.encode(command), *frames]
        for rank, socket in enumerate(self._sockets, start=1):
            try:
                socket.send_multipart(parts)
            except zmq.Again as error:
                raise RankSilent(rank, self._timeout_s) from error

    def agree(self, answer: Answer) -> None:
        """Wait for every rank's summary. Raises RankSilent or RanksDiverged."""
        if not self._sockets:
            return
        mine = summary(answer)
        for rank, theirs in enumerate(self._collect(), start=1):
            if theirs != mine:
                raise RanksDiverged(rank, mine, theirs)

    def ready(self, fingerprint: str = "") -> None:
        """Wait until every rank has loaded its models. Raises RankSilent, RanksUnlike."""
        for rank, theirs in enumerate(self._collect(), start=1):
            if theirs != fingerprint:
                raise RanksUnlike(rank, fingerprint, theirs)

    def _collect(self) -> list[str]:
        answers = []
        for rank, socket in enumerate(self._sockets, start=1):
            if not socket.poll(int(self._timeout_s * 1000)):
                raise RankSilent(rank, self._timeout_s)
            answers.append(socket.recv().decode())
        return answers


def follow(socket: "zmq.Socket[bytes]", executor: Executor, fingerprint: str = "") -> None:
    """Another rank's whole life: it says what it computes with, then executes what rank 0 says until told to stop."""
    socket.send(fingerprint.encode())
    while True:
        head, *frames = socket.recv_multipart()
        match wire.decode_engine_message(head):
            case WorkUnit() as unit:
                socket.send(summary(executor.run(unit, frames)).encode())
            case Batch() as batch:
                for answer in executor.run_batch(batch, frames):
                    socket.send(summary(answer).encode())
            case Release(job=job):
                executor.resident.release(job)
            case Shutdown():
                return
            case _:
                executor.resident.clear()
