"""Who may write: the one place that decides, on what is known of heads and keys, in the order of the appends."""

from msgspec import Struct

from store.errors import KeyTaken, StoreError, StreamConflict
from store.journal import Append


class Head(Struct, frozen=True):
    """Where a stream is and who owns it."""

    version: int = 0
    epoch: int = 0


class Taken(Struct, frozen=True):
    """What an idempotency key stands for."""

    stream: str
    fingerprint: str


class Admission:
    """Heads and keys as they are, and as each admitted append leaves them for the next."""

    def __init__(self, heads: dict[str, Head], keys: dict[str, Taken]) -> None:
        self.heads = heads
        self.keys = keys

    def admit(self, append: Append) -> StoreError | None:
        """Take the append in, or say why not and take nothing of it."""
        key = append.key
        if key is not None and (taken := self.keys.get(key.key)):
            return KeyTaken(key.key, taken.stream, taken.fingerprint)
        if self.heads.get(append.stream, Head()) != Head(append.expected, append.epoch):
            return StreamConflict(append.stream, append.expected, append.epoch)
        self.heads[append.stream] = head_after(append)
        if key is not None:
            self.keys[key.key] = Taken(append.stream, key.fingerprint)
        return None


def head_after(append: Append) -> Head:
    return Head(version=append.expected + len(append.events), epoch=append.epoch + append.claim)
