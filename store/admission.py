"""Who may write: the one place that decides, on what is known of heads and keys, in the order of the appends."""

from collections.abc import Collection

from msgspec import Struct

from store.chain import link
from store.errors import KeyTaken, LeaseLost, StoreError, StreamConflict
from store.journal import Append


class Head(Struct, frozen=True):
    """Where a stream is, who owns it, and the hash of its last event."""

    version: int = 0
    epoch: int = 0
    hash: bytes = b""

    def takes(self, append: Append) -> bool:
        return (self.version, self.epoch) == (append.expected, append.epoch)


class Taken(Struct, frozen=True):
    """What an idempotency key stands for."""

    stream: str
    fingerprint: str


class Admitted(Struct, frozen=True):
    """An append that is to be written, the hashes of its events, and where it leaves the stream."""

    append: Append
    was: bytes
    """The hash that its first event follows."""

    hashes: tuple[bytes, ...]
    head: Head


NOWHERE = Head()
"""The head of a stream that does not exist."""


class Admission:
    """Heads, keys and live leases as they are, and the first two as each admitted append leaves them for the next."""

    def __init__(self, heads: dict[str, Head], keys: dict[str, Taken], leases: Collection[str]) -> None:
        self.heads = heads
        self.keys = keys
        self.leases = leases

    def admit(self, append: Append) -> Admitted | StoreError:
        """Take the append in, or say why not and take nothing of it."""
        key = append.key
        if key is not None and (taken := self.keys.get(key.key)):
            return KeyTaken(key.key, taken.stream, taken.fingerprint)
        if append.lease is not None and append.lease not in self.leases:
            return LeaseLost(append.lease)
        head = self.heads.get(append.stream, NOWHERE)
        if not head.takes(append):
            return StreamConflict(append.stream, append.expected, append.epoch)
        admitted = _admitted(append, head)
        self.heads[append.stream] = admitted.head
        if key is not None:
            self.keys[key.key] = Taken(append.stream, key.fingerprint)
        return admitted


def _admitted(append: Append, head: Head) -> Admitted:
    epoch = append.epoch + append.claim
    tip = head.hash
    hashes = []
    for version, event in enumerate(append.events, start=append.expected + 1):
        tip = link(tip, append.stream, version, epoch, event.type, append.at, event.body)
        hashes.append(tip)
    return Admitted(append, head.hash, tuple(hashes), Head(append.expected + len(append.events), epoch, tip))
