"""The journal's port: streams of events with expected versions, epochs, checkpoints, blobs and one read model.

A journal keeps bytes. It knows the order of events and who may write, and nothing of what they mean.
"""

from collections.abc import AsyncGenerator, Awaitable, Sequence
from typing import Protocol

from msgspec import Struct


class NewEvent(Struct, frozen=True):
    type: str
    body: bytes


class Event(Struct, frozen=True):
    """`position` orders all events of a store as they were committed and is never reused; `version` counts a stream.

    `hash` covers the event and the one before it in its stream: `store.chain` says how.
    """

    position: int
    stream: str
    version: int
    epoch: int
    type: str
    at: float
    body: bytes
    hash: bytes = b""


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

    owner: str | None = None
    """The engine that drives it, or is to."""

    attempts: int = 1
    metadata: dict[str, str] | None = {}
    """None if somebody has put something else there."""


class JobFilter(Struct, frozen=True, kw_only=True):
    """Which jobs to list: those of which all is true that is not None. `metadata` may name some of a job's entries.

    Times are in seconds since 1970; `updated_before` of a finished job is about its end.
    """

    status: str | None = None
    model: str | None = None
    open: bool | None = None
    owner: str | None = None
    prefix: str | None = None
    submitted_before: float | None = None
    updated_before: float | None = None
    updated_after: float | None = None
    attempts_from: int | None = None
    metadata: dict[str, str] = {}
    unreadable: bool = False
    """Only those whose metadata somebody has made unreadable."""


class IdempotencyKey(Struct, frozen=True):
    """`fingerprint` is the digest of the request that the key was first used with."""

    key: str
    fingerprint: str


class Append(Struct, frozen=True, kw_only=True):
    """One atomic write: all of it is on disk, or none of it.

    Refused unless the stream is at version `expected` under epoch `epoch`. With `claim` the writer takes the stream
    over: its epoch becomes `epoch + 1`, the events carry the new epoch, and whoever held the old one can write no more.
    With `lease` it is refused, too, once the lease of that engine has run out by the database's clock.
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
    lease: str | None = None


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
    hash: bytes = b""
    """That of the stream's last event."""


class StreamCopy(Struct, frozen=True, kw_only=True):
    """A whole stream of another store. The positions of its events are that store's; here they get new ones."""

    stream: str
    version: int
    epoch: int
    hash: bytes
    events: tuple[Event, ...]
    checkpoint: Checkpoint | None = None
    blobs: tuple[Blob, ...] = ()
    row: JobRow | None = None


class EngineRow(Struct, frozen=True):
    """An engine that works on this store. `left_s` is what its lease has left by the database's clock: above 0, it is
    alive and nobody takes its jobs. `models` are those that it has workers for.
    """

    name: str
    url: str
    models: tuple[str, ...]
    left_s: float


class InlineBlob(Struct, frozen=True):
    """`age_s` is since an append last brought it, by the database's clock."""

    digest: str
    nbytes: int
    age_s: float


class StoreStatistics(Struct, frozen=True):
    """Rows and bytes. `nbytes` is what the database takes on disk, where it can say so."""

    streams: int
    events: int
    checkpoints: int
    jobs: int
    open_jobs: int
    blobs: int
    blob_bytes: int
    last_position: int
    nbytes: int | None


ALL_JOBS = JobFilter()


class News(Struct, frozen=True):
    """That there is an event, not what it says."""

    stream: str
    type: str
    epoch: int


class Journal(Protocol):
    """Every method may raise `StoreUnavailable`; what was not acknowledged may then be on disk or not."""

    @property
    def shared(self) -> bool:
        """Whether several engines may write to it at once."""
        ...

    async def identity(self) -> str:
        """The store's own name: no other store has it, not one that was restored from a backup of this one either."""
        ...

    def append(self, append: Append) -> Awaitable[Appended]:
        """Queue the write at once, in the order of calls, and return what to await for its durability.

        Raises (from the awaitable): StreamConflict, KeyTaken, LeaseLost, StoreUnavailable.
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

    async def jobs(self, where: JobFilter = ALL_JOBS, *, after: str | None = None, limit: int = 100) -> list[JobRow]:
        """Newest first, `after` a job id exclusive; with `open=True` in the order of work: priority, then age."""
        ...

    async def open_jobs(self) -> int:
        """How many there are, whoever drives them."""
        ...

    async def job_of_key(self, key: str) -> tuple[str, str] | None:
        """The stream and the fingerprint that an idempotency key stands for."""
        ...

    async def replace_rows(self, rows: Sequence[JobRow], *, at: int | None = None) -> bool:
        """Drop the read model and write these rows instead, in one transaction.

        With `at` only if the newest event is still at that position: else False, and nothing has changed.
        """
        ...

    def news(self) -> AsyncGenerator[Sequence[News], None]:
        """What is appended from now on, where other processes append too; for ever. One's own may be among it."""
        ...

    # -- engines ------------------------------------------------------------------------------------------------

    async def hold_lease(self, engine: str, *, ttl_s: float, url: str = "", models: Sequence[str] = ()) -> None:
        """Take or renew an engine's lease, from now by the database's clock, for `ttl_s`."""
        ...

    async def end_lease(self, engine: str) -> bool:
        """It has run out from now on. Whether there was one."""
        ...

    async def engines(self) -> list[EngineRow]: ...

    async def claimable(self, engine: str, limit: int) -> list[JobRow]:
        """Open jobs that no other engine with a live lease owns, in the order of work."""
        ...

    # -- moving and forgetting ----------------------------------------------------------------------------------

    async def adopt(self, copy: StreamCopy) -> None:
        """Take in a stream of another store, all or nothing. Raises StreamConflict if there is one of its name."""
        ...

    async def purge(self, stream: str, *, expected: int, epoch: int) -> None:
        """Forget a stream and all that is derived from it, step by step: appends to others go on meanwhile.

        A purge that was cut off leaves a stream that cannot be loaded; the next purge of it finishes the work.
        Raises StreamConflict if it is not at that version and epoch.
        """
        ...

    async def purging(self) -> list[str]:
        """Streams whose purge was cut off."""
        ...

    async def inline_blobs(self, *, after: str = "", limit: int = 1000) -> list[InlineBlob]:
        """In the order of their digests, `after` exclusive."""
        ...

    async def keep_blobs(self, digests: Sequence[str]) -> set[str]:
        """Those of them that are inline: as if an append had brought them just now."""
        ...

    async def drop_blobs(self, digests: Sequence[str], *, grace_s: float) -> int:
        """Forget inline blobs, but for those that an append has brought within the grace. Returns how many went."""
        ...

    async def statistics_of_store(self) -> StoreStatistics: ...
