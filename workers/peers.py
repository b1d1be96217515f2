"""What the ranks of a pool say to each other while they obey a command, each to the mailboxes of others.

A round is over when all of those it is among have said something in it. One that is done with the command instead, or
says nothing in time, is named, and ends the pool: there is no clock by which a rank would decide anything else.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import zmq
from msgspec import Struct

from workers.clock import monotonic
from workers.errors import ExchangeBroken

ENDED = 0
"""The round of a note that says how a rank's part in a command has ended. Others count from 1."""


class Note(Struct, frozen=True):
    """`command` is the number of that which the ranks obey: the same on all of them."""

    rank: int
    command: int
    among: tuple[int, ...] = ()
    round: int = ENDED
    data: bytes = b""


class Peers:
    """One rank's side."""

    def __init__(
        self, rank: int, mailbox: "zmq.Socket[bytes]", others: Sequence["zmq.Socket[bytes]"], timeout_s: float
    ) -> None:
        self.rank = rank
        self.timeout_s = timeout_s
        self._mailbox = mailbox
        self._others = others
        """By rank; its own is not connected to."""
        self._command = 0
        self._rounds: dict[tuple[int, ...], int] = defaultdict(int)
        self._heard: dict[tuple[int, int, tuple[int, ...], int], bytes] = {}
        """Of this command, and of later ones: a rank may be ahead."""

    def begin(self, command: int) -> None:
        self._command = command
        self._rounds.clear()
        self._heard = {key: data for key, data in self._heard.items() if key[0] >= command}
        while self._hear(monotonic()):  # or what nobody waited for would pile up
            pass

    def end(self, how: str, among: Sequence[int] | None = None) -> None:
        """Tell these others, or all, whichever of them may wait for this rank."""
        for rank in range(len(self._others)) if among is None else among:
            self._send(rank, Note(self.rank, self._command, data=how.encode()))

    def meet(self, within_s: float) -> None:
        """Wait until all others are there. Raises ExchangeBroken."""
        self.round(tuple(range(len(self._others))), b"", within_s)

    def round(self, among: tuple[int, ...], data: bytes, within_s: float | None = None) -> list[bytes]:
        """What each of them says, in their order. Raises ExchangeBroken."""
        within_s = self.timeout_s if within_s is None else within_s
        self._rounds[among] += 1
        number = self._rounds[among]
        for rank in among:
            self._send(rank, Note(self.rank, self._command, among, number, data))
        deadline = monotonic() + within_s
        while missing := [rank for rank in among if rank != self.rank and not self._has(rank, among, number)]:
            for rank in missing:
                if self._has(rank):
                    how = self._heard[self._command, rank, (), ENDED].decode()
                    raise ExchangeBroken([rank], f"ended command {self._command} by itself: {how}")
            if not self._hear(deadline):
                raise ExchangeBroken(missing, f"said nothing of command {self._command} for {within_s:g} s")
        return [data if rank == self.rank else self._heard[self._command, rank, among, number] for rank in among]

    def missing(self, among: Sequence[int], within_s: float) -> list[int]:
        """Of these, those that do not even say that they have lost another."""
        deadline = monotonic() + within_s
        while missing := [rank for rank in among if rank != self.rank and not self._has(rank)]:
            if not self._hear(deadline):
                break
        return missing

    def _has(self, rank: int, among: tuple[int, ...] = (), number: int = ENDED) -> bool:
        return (self._command, rank, among, number) in self._heard

    def _send(self, rank: int, note: Note) -> None:
        if rank != self.rank:
            self._others[rank].send(msgspec.msgpack.encode(note))

    def _hear(self, deadline: float) -> bool:
        """Take in a note, which may be left over from a command before; False if none came."""
        if not self._mailbox.poll(max(0, int((deadline - monotonic()) * 1000))):
            return False
        note = msgspec.msgpack.decode(self._mailbox.recv(), type=Note)
        if note.command >= self._command:
            self._heard[note.command, note.rank, note.among, note.round] = note.data
        return True


@contextmanager
def joined(folder: Path, rank: int, ranks: int, timeout_s: float) -> Iterator[Peers]:
    """The mailboxes of a pool's ranks lie in one folder."""
    with ExitStack() as stack:
        context = stack.enter_context(zmq.Context())
        mailbox = stack.enter_context(context.socket(zmq.PULL))
        mailbox.bind(_address(folder, rank))
        others = [stack.enter_context(context.socket(zmq.PUSH)) for _ in range(ranks)]
        for other, socket in enumerate(others):
            socket.setsockopt(zmq.LINGER, 500)  # a last word is worth waiting for, a stopped process is not
            if other != rank:
                socket.connect(_address(folder, other))
        yield Peers(rank, mailbox, others, timeout_s)


def _address(folder: Path, rank: int) -> str:
    return f"ipc://{folder}/mailbox-{rank}"
