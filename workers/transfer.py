"""What two workers say to each other of a tensor that one of them lacks, and how much may be on its way. Pure.

The one that lacks it asks, and says how far the holder may send; each part that has come lets the holder send further.
Bytes in flight are bounded at both ends, over all tensors together: by the asker those that may come and have not, by
the holder those that it has sent and does not know to be there. Both sums are taken over what is under way, so that
nothing which ends, in whatever way, leaves something behind.

On one machine nothing is sent but where the bytes are: in memory that both can read.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import msgspec
from msgspec import Struct

from cards.codec import Parts

PART_BYTES = 1 << 20
WINDOW_BYTES = 4 << 20
"""Of one tensor that may be on its way, so that neither end waits for the other."""

IN_FLIGHT_BYTES = 32 << 20
"""That may come to an asker, of all tensors."""

OUT_FLIGHT_BYTES = 256 << 20
"""That a holder has sent or shared and that may not have been taken, to all askers."""

PATIENCE_S = 5.0
"""Without a word the other end is given up."""


class Ask(Struct, frozen=True, tag="ask"):
    """Send this tensor's blob up to the byte `until`; `number` is the asker's name for it.

    `place` is the machine that the asker is on, and empty if it would not read shared memory.
    """

    number: int
    job: str
    digest: str
    until: int
    place: str = ""


class Further(Struct, frozen=True, tag="further"):
    """The bytes up to `taken` are here; send up to `until`."""

    number: int
    taken: int
    until: int


class Enough(Struct, frozen=True, tag="enough"):
    """The asker has it all, or gives it up: forget it."""

    number: int


class Part(Struct, frozen=True, tag="part"):
    """The bytes from `begin` on follow as a frame. The whole blob has `total`."""

    number: int
    begin: int
    total: int


class Shared(Struct, frozen=True, tag="shared"):
    """The whole blob is in memory that the process `pid` has open as `fd`, until it hears `Enough`."""

    number: int
    pid: int
    fd: int
    total: int


class Gone(Struct, frozen=True, tag="gone"):
    """The tensor is not here."""

    number: int


AskerMessage: TypeAlias = Ask | Further | Enough
HolderMessage: TypeAlias = Part | Shared | Gone

encode = msgspec.msgpack.Encoder().encode
decode_asker_message = msgspec.msgpack.Decoder(AskerMessage).decode
decode_holder_message = msgspec.msgpack.Decoder(HolderMessage).decode


class Memory(Protocol):
    """Bytes that another process of this machine can read for as long as this is open."""

    @property
    def pid(self) -> int: ...
    @property
    def fd(self) -> int: ...
    def close(self) -> None: ...


class Lent(Struct):
    """One tensor on its way to one asker."""

    parts: Parts
    until: int
    shared: bool
    heard_at: float
    total: int
    sent: int = 0
    taken: int = 0
    memory: Memory | None = None

    def slice(self, nbytes: int) -> memoryview:
        """The next bytes, at most so many: a part is of the header or of the data."""
        header, data = self.parts
        if self.sent < len(header):
            return memoryview(header)[self.sent : self.sent + nbytes]
        begin = self.sent - len(header)
        return data[begin : begin + nbytes]


class Lender:
    """The holder's end. `find` gives a tensor's blob; `share` puts one into shared memory, for askers at `place`.

    `outbox` has what is to be sent, and to whom.
    """

    def __init__(
        self,
        find: Callable[[str, str], Parts | None],
        share: Callable[[Parts], Memory] | None = None,
        place: str = "",
        *,
        most: int = OUT_FLIGHT_BYTES,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.outbox: deque[tuple[bytes, HolderMessage, Sequence[memoryview]]] = deque()
        self._find = find
        self._share = share
        self._place = place
        self._most = most
        self._patience_s = patience_s
        self._lent: dict[tuple[bytes, int], Lent] = {}

    @property
    def in_flight(self) -> int:
        """Bytes that are out and may not have been taken."""
        return sum(lent.sent - lent.taken for lent in self._lent.values())

    @property
    def busy(self) -> bool:
        return bool(self._lent)

    def heard(self, asker: bytes, message: AskerMessage, now: float) -> None:
        key = (asker, message.number)
        match message:
            case Ask():
                self._begin(key, message, now)
            case Further() if key in self._lent:
                lent = self._lent[key]
                lent.taken, lent.until, lent.heard_at = min(message.taken, lent.sent), message.until, now
            case Enough():
                self._end(key)
        self._send()

    def lost(self, asker: bytes) -> None:
        """There is no way to an asker any more."""
        for key in [key for key in self._lent if key[0] == asker]:
            self._end(key)
        self._send()

    def expire(self, now: float) -> None:
        for key in [key for key, lent in self._lent.items() if now - lent.heard_at > self._patience_s]:
            self._end(key)
        self._send()

    def close(self) -> None:
        for key in list(self._lent):
            self._end(key)

    def _begin(self, key: tuple[bytes, int], ask: Ask, now: float) -> None:
        self._end(key)
        parts = self._find(ask.job, ask.digest)
        if parts is None:
            self.outbox.append((key[0], Gone(ask.number), ()))
            return
        shared = self._share is not None and bool(ask.place) and ask.place == self._place
        total = len(parts[0]) + parts[1].nbytes
        self._lent[key] = Lent(parts, ask.until, shared, now, total)

    def _end(self, key: tuple[bytes, int]) -> None:
        lent = self._lent.pop(key, None)
        if lent is not None and lent.memory is not None:
            lent.memory.close()

    def _send(self) -> None:
        """What may leave now, in the order in which it was asked for."""
        for (asker, number), lent in list(self._lent.items()):
            if lent.shared:
                self._expose(asker, number, lent)
                continue
            while (nbytes := min(lent.until, lent.total, lent.sent + PART_BYTES) - lent.sent) > 0 and self._may(nbytes):
                part = lent.slice(nbytes)
                self.outbox.append((asker, Part(number, lent.sent, lent.total), (part,)))
                lent.sent += part.nbytes

    def _expose(self, asker: bytes, number: int, lent: Lent) -> None:
        assert self._share is not None
        if lent.memory is not None or not self._may(lent.total):
            return
        try:
            lent.memory = self._share(lent.parts)
        except (OSError, MemoryError):  # no memory is left: the asker is sent it
            lent.shared = False
            return
        lent.sent = lent.total
        self.outbox.append((asker, Shared(number, lent.memory.pid, lent.memory.fd, lent.total), ()))

    def _may(self, nbytes: int) -> bool:
        """Whether so many bytes more may be out. What is larger than all that may be is out alone."""
        in_flight = self.in_flight
        return not in_flight or in_flight + nbytes <= self._most
