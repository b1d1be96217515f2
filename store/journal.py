"""The journal's port: streams of events with expected versions, epochs, checkpoints, blobs and one read model.

A journal keeps bytes. It knows the order of events and who may write, and nothing of what they mean.
"""

from collections.abc import Awaitable, Sequence
from typing import Protocol

from msgspec import Struct


class NewEvent(Struct, frozen=True):
    type: str
    body: bytes


class Event(Struct, frozen=True):
    """`position` orders all events of a store as they were committed and is never reused; `version` counts a stream."""

    position: int
    stream: str
    version: int
    epoch: int
    type: str
    at: float
    body: bytes


class Blob(Struct, frozen=True):
    digest: str
    data: bytes


class JobRow(Struct, frozen=True):
    """The list's view of a job: derived from its events, dropped and rebuilt at will."""

    id: str
    status: str
    model: str
    priority: int
    submitted_at: float
    updated_at: float
    open: bool
    """Whether an engine still has work to do on it."""


class IdempotencyKey(Struct, frozen=True):
    """`fingerprint` is the digest of the request that the key was first used with."""

    key: str
    fingerprint: str


class Append(Struct, frozen=True, kw_only=True):
    """One atomic write: all of it is on disk, or none of it.

    Refused unless the stream is at version `expected` under epoch `epoch`. With `claim` the writer takes the stream
    over: its epoch becomes `epoch + 1`, the events carry the new epoch, and whoever held the old one can write no more.
    """

    stream: str
    expected: int
    epoch: int
    at: float
    events: tuple[NewEvent, ...]
    claim: bool = False
    checkpoint: bytes | None = None
    blobs: tuple[Blob, ...] = ()
    row: JobRow | None = None
    key: IdempotencyKey | None = None


class Appended(Struct, frozen=True):
    """`position` is that of the last event (0 if there was none), `version` the stream's new one."""

    version: int
    position: int


class Checkpoint(Struct, frozen=True):
    """A stream's saved state, valid after its event `version`. There is one: the last that was saved."""

    version: int
    body: bytes


class Loaded(Struct, frozen=True):
    """All that is needed to go on: the head, the last checkpoint, and the events after it (all, if there is none)."""

    version: int
    epoch: int
    checkpoint: Checkpoint | None
    events: tuple[Event, ...]


class Journal(Protocol):
    """Every method may raise `StoreUnavailable`; what was not acknowledged may then be on disk or not."""

    def append(self, append: Append) -> Awaitable[Appended]:
        """Queue the write at once, in the order of calls, and return what to await for its durability.

        Raises (from the awaitable): StreamConflict, KeyTaken, StoreUnavailable.
        """
        ...

    async def load(self, stream: str) -> Loaded | None: ...

    async def load_many(self, streams: Sequence[str]) -> dict[str, Loaded]:
        """As `load`, for all of them at the cost of one; streams that do not exist are absent."""
        ...

    async def streams(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
        """Names that start with `prefix`, in order, `after` exclusive."""
        ...

    async def read(self, stream: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """Events of a stream with a position greater than `after`, in order."""
        ...

    async def read_all(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """Events of all streams with a position greater than `after`, in commit order."""
        ...

    async def blobs(self, digests: Sequence[str]) -> dict[str, bytes]:
        """The inline blobs among `digests`; those that are not inline are absent. Raises CorruptBlob."""
        ...

    async def jobs(
        self,
        *,
        status: str | None = None,
        model: str | None = None,
        open: bool | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[JobRow]:
        """Newest first, `after` a job id exclusive; with `open=True` in the order of work: priority, then age."""
        ...

    async def job_of_key(self, key: str) -> tuple[str, str] | None:
        """The stream and the fingerprint that an idempotency key stands for."""
        ...

    async def replace_rows(self, rows: Sequence[JobRow]) -> None:
        """Drop the read model and write these rows instead, in one transaction."""
        ...
