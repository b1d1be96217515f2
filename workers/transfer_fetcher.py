"""The asker's end of transfers: for each unit the tensors that another worker holds, as far as they come. Pure.

Whatever goes wrong with one (the holder is gone or has forgotten it, the bytes are others) it is not brought, and
its unit goes on without it.
"""

import itertools
from collections import deque
from collections.abc import Callable
from math import inf

from msgspec import Struct, field
from msgspec.structs import replace

from cards import codec
from cards.wire import Fetch, Fetched, UnitId
from workers.transfer import (
    IN_FLIGHT_BYTES,
    PART_BYTES,
    PATIENCE_S,
    WINDOW_BYTES,
    Ask,
    AskerMessage,
    Enough,
    Further,
    Gone,
    HolderMessage,
    Part,
    Shared,
)


class Brought(Struct, frozen=True):
    """What has come for a unit, by digest; all of it has been checked."""

    unit: UnitId
    blobs: dict[str, bytes]


class Coming(Struct):
    """What a unit waits for."""

    unit: UnitId
    began: float
    digests: set[str]
    blobs: dict[str, bytes] = field(default_factory=dict)


class Asked(Struct):
    """One tensor. `heard_at` is None as long as it has not been asked for."""

    coming: Coming
    address: str
    digest: str
    place: str
    until: int = 0
    taken: int = 0
    total: int | None = None
    parts: list[bytes] = field(default_factory=list)
    heard_at: float | None = None

    @property
    def in_flight(self) -> int:
        return (self.until if self.total is None else min(self.until, self.total)) - self.taken


class Fetcher:
    """`read` gives what a holder has shared, or raises OSError or MemoryError. `outbox` has what is to be sent, and to
    what address; `brought` the units that need not wait any more.
    """

    def __init__(
        self,
        read: Callable[[Shared], bytes] | None = None,
        place: str = "",
        *,
        most: int = IN_FLIGHT_BYTES,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.outbox: deque[tuple[str, AskerMessage]] = deque()
        self.brought: deque[Brought] = deque()
        self.fetched = Fetched()
        self._read = read
        self._place = place if read is not None else ""
        self._most = most
        self._patience_s = patience_s
        self._numbers = itertools.count(1)
        self._asked: dict[int, Asked] = {}
        self._heard: dict[str, float] = {}
        """When a word last came from an address."""

    @property
    def in_flight(self) -> int:
        """Bytes that may come and have not."""
        return sum(asked.in_flight for asked in self._asked.values())

    @property
    def busy(self) -> bool:
        return bool(self._asked)

    def asks(self, address: str) -> bool:
        """Whether something is to come from there."""
        return any(asked.address == address for asked in self._asked.values())

    def begin(self, unit: UnitId, fetch: Fetch, now: float) -> None:
        coming = Coming(unit, now, set(fetch.digests))
        for digest in fetch.digests:
            self._asked[next(self._numbers)] = Asked(coming, fetch.address, digest, self._place)
        self._ask(now)

    def heard(self, address: str, message: HolderMessage, frames: list[bytes], now: float) -> None:
        asked = self._asked.get(message.number)
        if asked is None or asked.address != address:
            return
        asked.heard_at = self._heard[address] = now
        match message:
            case Gone():
                self._end(message.number, None, now)
            case Shared():
                self._take_shared(asked, message, now)
            case Part():
                self._take(asked, message, frames, now)
        self._ask(now)

    def expire(self, now: float) -> None:
        """Give up what has been silent for too long, and all of a holder that has."""
        since = now - self._patience_s
        silent = {n: one.address for n, one in self._asked.items() if one.heard_at is not None and one.heard_at < since}
        gone = {address for address in silent.values() if self._heard.get(address, -inf) < since}
        for number in [n for n, one in self._asked.items() if n in silent or one.address in gone]:
            self._end(number, None, now)
        self._heard = {address: at for address, at in self._heard.items() if self.asks(address)}
        self._ask(now)

    def _take(self, asked: Asked, part: Part, frames: list[bytes], now: float) -> None:
        if len(frames) != 1 or part.begin != asked.taken or not asked.taken < part.begin + len(frames[0]) <= part.total:
            self._end(part.number, None, now)
            return
        asked.parts.append(frames[0])
        asked.taken, asked.total = asked.taken + len(frames[0]), part.total
        if asked.taken == asked.total:
            data = b"".join(asked.parts)
            self._end(part.number, data if codec.digest(data) == asked.digest else None, now)

    def _take_shared(self, asked: Asked, shared: Shared, now: float) -> None:
        assert self._read is not None
        try:
            data = self._read(shared)
        except (OSError, MemoryError):
            data = b""
        if codec.digest(data) == asked.digest:
            self._end(shared.number, data, now)
        else:  # memory of another machine, or of one that does not let others read it: it is to be sent
            asked.place, asked.heard_at = "", None

    def _end(self, number: int, data: bytes | None, now: float) -> None:
        """A tensor has come, or will not."""
        asked = self._asked.pop(number)
        coming, so_far = asked.coming, self.fetched
        self.outbox.append((asked.address, Enough(number)))
        if data is None:
            self.fetched = replace(so_far, failed=so_far.failed + 1)
        else:
            coming.blobs[asked.digest] = data
            self.fetched = replace(so_far, tensors=so_far.tensors + 1, nbytes=so_far.nbytes + len(data))
        coming.digests.discard(asked.digest)
        if not coming.digests:
            self.fetched = replace(self.fetched, seconds=self.fetched.seconds + now - coming.began)
            self.brought.append(Brought(coming.unit, coming.blobs))

    def _ask(self, now: float) -> None:
        """Let holders send as much as may come, in the order in which it is wanted."""
        for number, asked in self._asked.items():
            more = self._more(asked)
            asked.until += more
            if asked.heard_at is None and asked.until:
                asked.heard_at = now
                ask = Ask(number, asked.coming.unit.job, asked.digest, asked.until, asked.place)
                self.outbox.append((asked.address, ask))
            elif more:
                self.outbox.append((asked.address, Further(number, asked.taken, asked.until)))

    def _more(self, asked: Asked) -> int:
        """How much further the holder of a tensor may send: whole parts, or nothing."""
        if asked.total is not None and asked.until >= asked.total:
            return 0
        room = min(WINDOW_BYTES - asked.in_flight, self._most - self.in_flight)
        return room - room % PART_BYTES if room > 0 else 0
