"""The chain of a stream: every event's hash covers the event and the hash before it.

A row that was changed, taken out, added or moved breaks the chain there. The head carries the last hash, so a tail
that was cut off is seen too. Nothing here keeps out someone who writes the whole chain anew.
"""

from collections.abc import Iterable
from struct import Struct as Layout
from struct import error as NotAnEvent

from blake3 import blake3

from store.journal import Event, Loaded

_NUMBERS = Layout("<qqd").pack
_LENGTH = Layout("<q").pack


def link(previous: bytes, stream: str, version: int, epoch: int, type: str, at: float, body: bytes) -> bytes:
    """The hash of an event that follows the one with the hash `previous` (empty for a stream's first)."""
    name, tag = stream.encode(), type.encode()
    lengths = _LENGTH(len(name)) + _LENGTH(len(tag)) + _LENGTH(len(body))
    return blake3(b"".join((previous, _NUMBERS(version, epoch, at), lengths, name, tag, body))).digest()


class Chain:
    """A stream's chain, followed event by event as a journal reads them, up to where it breaks."""

    def __init__(self) -> None:
        self._version = 0
        self._position = 0
        self._tip = b""
        self._broken: str | None = None

    def follow(self, event: Event) -> None:
        if self._broken is not None:
            return
        version = self._version
        expected = _expected(self._tip, event)
        if event.version != version + 1:
            self._broken = f"event {version + 1} is missing or out of order: {event.version} stands in its place"
        elif event.hash != expected:
            what = f"event {event.version} ({event.type})"
            self._broken = f"{what} is not what was written, or not what followed event {version}"
        elif event.position <= self._position:
            self._broken = f"event {event.version} is out of order: it has an earlier position than event {version}"
        self._version, self._position, self._tip = event.version, event.position, event.hash

    def broken(self, head: Loaded | None) -> str | None:
        """What is wrong with a stream that ends here, in words, or None."""
        if self._broken is not None:
            return self._broken
        if head is None:
            return "has no head"
        if head.version != self._version:
            return f"ends at event {self._version}, its head says {head.version}"
        return None if head.hash == self._tip else "the head does not carry the hash of the last event"


def _expected(previous: bytes, event: Event) -> bytes | None:
    """None for what no journal has written: SQLite keeps whatever type somebody puts into a column."""
    try:
        return link(previous, event.stream, event.version, event.epoch, event.type, event.at, event.body)
    except (TypeError, AttributeError, NotAnEvent):
        return None


def broken(events: Iterable[Event], head: Loaded | None) -> str | None:
    """What is wrong with a whole stream, in words, or None. `events` are as a journal reads them."""
    chain = Chain()
    for event in events:
        chain.follow(event)
    return chain.broken(head)
