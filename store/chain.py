"""The chain of a stream: every event's hash covers the event and the hash before it.

A row that was changed, taken out, added or moved breaks the chain there. The head carries the last hash, so a tail
that was cut off is seen too. Nothing here keeps out someone who writes the whole chain anew.
"""

from collections.abc import Iterable
from struct import Struct as Layout

from blake3 import blake3

from store.journal import Event, Loaded

_NUMBERS = Layout("<qqd").pack
_LENGTH = Layout("<q").pack


def link(previous: bytes, stream: str, version: int, epoch: int, type: str, at: float, body: bytes) -> bytes:
    """The hash of an event that follows the one with the hash `previous` (empty for a stream's first)."""
    name, tag = stream.encode(), type.encode()
    lengths = _LENGTH(len(name)) + _LENGTH(len(tag)) + _LENGTH(len(body))
    return blake3(b"".join((previous, _NUMBERS(version, epoch, at), lengths, name, tag, body))).digest()


def broken(events: Iterable[Event], head: Loaded | None) -> str | None:
    """What is wrong with a whole stream, in words, or None. `events` are in the order of their positions."""
    previous, version = b"", 0
    for event in events:
        if event.version != version + 1:
            return f"event {version + 1} is missing or out of order: {event.version} stands in its place"
        expected = link(previous, event.stream, event.version, event.epoch, event.type, event.at, event.body)
        if event.hash != expected:
            return f"event {event.version} ({event.type}) is not what was written, or not what followed event {version}"
        previous, version = event.hash, event.version
    if head is None:
        return "has no head"
    if head.version != version:
        return f"ends at event {version}, its head says {head.version}"
    return None if head.hash == previous else "the head does not carry the hash of the last event"
