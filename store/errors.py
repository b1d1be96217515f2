"""
StoreError
 - StreamConflict     another writer was there first, or holds a newer epoch
 - LeaseLost          the lease of the engine that writes has run out
 - KeyTaken           an idempotency key is in use already
 - CorruptBlob        bytes on disk do not hash to their name
 - MissingBlob        no bytes under that name
 - StoreUnavailable   the disk or the database does not take writes now
 - StoreRefused       an append that the database cannot take, whenever it is asked
 - StoreLocked        another engine holds this store
 - SchemaMismatch     the store's schema is older or newer than this code
 - BadStoreUrl        a URL that names no store
 - BadQuestion        a statement that is not one question
 - QuestionTooLong    a statement that takes too long
 - NoIdentity         a store that does not know which one it is
 - StoreNotEmpty      what is to be filled has something in it
 - DamagedDump        what is to fill a store is not what was once in one
"""


class StoreError(Exception):
    """Root of what the store raises."""


class StreamConflict(StoreError):
    def __init__(self, stream: str, expected: int, epoch: int) -> None:
        super().__init__(f"{stream} is not at version {expected} under epoch {epoch}")
        self.stream = stream
        self.expected = expected
        self.epoch = epoch


class LeaseLost(StoreError):
    def __init__(self, engine: str) -> None:
        super().__init__(f"the lease of engine {engine} has run out")
        self.engine = engine


class KeyTaken(StoreError):
    def __init__(self, key: str, stream: str, fingerprint: str) -> None:
        super().__init__(f"idempotency key {key!r} belongs to {stream}")
        self.key = key
        self.stream = stream
        self.fingerprint = fingerprint


class CorruptBlob(StoreError):
    def __init__(self, digest: str) -> None:
        super().__init__(f"blob {digest} is corrupt: its bytes do not hash to its name")
        self.digest = digest


class MissingBlob(StoreError):
    def __init__(self, digest: str) -> None:
        super().__init__(f"blob {digest} is missing")
        self.digest = digest


class StoreUnavailable(StoreError):
    """The disk or the database refused; the message is its own."""


class StoreRefused(StoreError):
    def __init__(self, stream: str, error: Exception) -> None:
        super().__init__(f"{stream}: the database cannot take this: {type(error).__name__}: {error}")
        self.stream = stream


class StoreLocked(StoreError):
    """Another engine holds this store; the message says which."""


class SchemaMismatch(StoreError):
    """The message names both revisions and the remedy."""


class BadStoreUrl(StoreError):
    """The message names the URL and the forms that are taken."""


class BadQuestion(StoreError):
    """The message is the database's own, or says what would be taken."""


class QuestionTooLong(StoreError):
    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"the statement took longer than {timeout_s:g} s: ask for less, or give it more time")


class NoIdentity(StoreError):
    def __init__(self) -> None:
        super().__init__(
            "the store has lost its identity: table identity is empty; `engine-admin db backup` it, and "
            "`engine-admin db restore` that into an empty store"
        )


class StoreNotEmpty(StoreError):
    """The message says what is there."""


class DamagedDump(StoreError):
    """The message names the first thing that is not sound."""
