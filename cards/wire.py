"""What engine and workers say to each other, and the words both use for tensors and work.

Rule 1: data only. Tensors appear as `TensorRef`, bytes travel beside a message as frames of their own.
Rule 2: tags are spelled out; a new field has a default.
Rule 3: what was damaged on its way is not read. A message ends with its checksum, a frame's name is its digest.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import TypeAlias
from zlib import crc32

import msgspec
from msgspec import Struct

Scalar: TypeAlias = bool | int | float | str

INLINE_LIMIT = 64 * 1024
"""Bytes. A blob up to this size travels in messages and lives in SQL rows; a larger one is the blob store's."""


class TensorRef(Struct, frozen=True):
    """A tensor by content. `digest` names the blob that holds its bytes, dtype, shape and strides.

    Strides (in elements) are part of the identity: another memory layout picks other kernels and so other bits.
    """

    digest: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    nbytes: int


class ArtifactRef(Struct, frozen=True):
    """A named output that people fetch: a clip, a contact sheet, a preview."""

    name: str
    digest: str
    media_type: str
    nbytes: int


class Resources(Struct, frozen=True):
    """What a step asks to have reserved before it may run."""

    peak_bytes: int = 0


class WorkPlan(Struct, frozen=True, kw_only=True):
    """One step, described and not run: what it reads, what it makes, what it needs.

    `instance` is the card whose resident model runs it, `kind` picks the step body. `writes` promises the names of all
    tensors that the step leaves: the next plan depends on neither their values nor any scalar of this step, and may be
    queued before they are there. None: it may.

    `derives` names tensors that the step's fold makes (cards/folding.py), after its body has made the others. Their
    bytes are stored if it is a `snapshot`, which the engine says.

    `together`: its forwards may be rows of one forward with those of other jobs' steps of its kind, to the same bits.
    A `feature` follows from the reads and scalars alone: any step of any job for which these are equal makes the same,
    and a worker may answer with what it made before. `slabs` are those of the writes that later steps of the job read
    and nobody else does, such as keys and values: a worker counts them apart.
    """

    instance: str
    loop: str
    kind: str
    step: int
    reads: dict[str, TensorRef] = {}
    scalars: dict[str, Scalar] = {}
    resources: Resources = Resources()
    emits: tuple[str, ...] = ()
    writes: tuple[str, ...] | None = None
    derives: tuple[str, ...] = ()
    snapshot: bool = True
    together: bool = False
    feature: bool = False
    slabs: tuple[str, ...] = ()


class Refold(Struct, frozen=True):
    """How tensors that nobody stored are made again: the fold's plan, and what it must make, to the bit."""

    plan: WorkPlan
    makes: dict[str, TensorRef]


class StepError(Struct, frozen=True):
    """A step that raised. `kind` is the failure class: error, oom, nan, corrupt_checkpoint, store_trouble."""

    kind: str
    message: str


class UnitId(Struct, frozen=True):
    """Which answer belongs to which question. A result under another epoch, version or attempt decides nothing.

    `serial` is the engine's own count: what is sent twice, after a claim that did not become durable, has two names.
    """

    job: str
    epoch: int
    version: int
    attempt: int
    serial: int = 0


_PROMISE = "promised:"


def promised(unit: UnitId, name: str) -> TensorRef:
    """A tensor that a unit has not made yet, for a unit that follows it on the same worker."""
    return TensorRef(f"{_PROMISE}{unit.serial}:{name}", "", (), (), 0)


def is_promised(ref: TensorRef) -> bool:
    return ref.digest.startswith(_PROMISE)


class Fetch(Struct, frozen=True):
    """Tensors of a job that another worker holds, and keeps until it is told to release the job."""

    address: str
    """Where that worker gives them away (`Hello.transfers`)."""
    digests: tuple[str, ...]


class WorkUnit(Struct, frozen=True, tag="work_unit"):
    """Run this step. The bytes of the blobs named in `inline` follow as frames, in order.

    `keep` names all that the job's state still refers to: other tensors of this job may be forgotten. `refolds` come
    first, in order: they make what the step reads and the worker cannot read anywhere. What `fetch` brings need not be
    read or made; what it does not bring is.
    """

    id: UnitId
    plan: WorkPlan
    inline: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    refolds: tuple[Refold, ...] = ()
    fetch: Fetch | None = None


class Batch(Struct, frozen=True, tag="batch"):
    """Run these together; each is answered by itself. The frames of the units follow in the order of these."""

    units: tuple[WorkUnit, ...]


class Release(Struct, frozen=True, tag="release"):
    """Forget a job up to this epoch: drop its queued units and its resident tensors, then answer `Released`."""

    job: str
    epoch: int


class Introduce(Struct, frozen=True, tag="introduce"):
    """The engine does not know you (it restarted, or gave you up): drop all you hold and say `Hello` again.

    `number` tells introductions apart: the `Hello` repeats it.
    """

    number: int = 0


class Sleep(Struct, frozen=True, tag="sleep"):
    """Unload these components, each `<model>/<component>`. A step that needs one loads it again."""

    names: tuple[str, ...]


class Wake(Struct, frozen=True, tag="wake"):
    """Load these components now, as far as there is room."""

    names: tuple[str, ...]


class Shutdown(Struct, frozen=True, tag="shutdown"):
    """Finish the step that runs, answer it, and exit."""


class Refuse(Struct, frozen=True, tag="refuse"):
    """You cannot work for this engine; the reason is for the one who started you."""

    reason: str


EngineMessage: TypeAlias = WorkUnit | Batch | Release | Introduce | Sleep | Wake | Shutdown | Refuse


class ModelIdentity(Struct, frozen=True):
    """A card and the weights a worker has resident for it, both by content."""

    name: str
    card: str
    weights: str


class Hello(Struct, frozen=True, tag="hello"):
    """A worker that can take work. `credits` bounds the units with it at once, `memory_bytes` their peaks together.

    `serves` are the roles whose loops it runs (cards/roles.py), all if there are none. At `transfers` it gives other
    workers what it holds of a job.

    `answers` is the number of the `Introduce` that asked for it; 0 for a process that has just started.
    """

    worker: str
    pool: str
    pid: int
    host: str
    ranks: int
    credits: int
    memory_bytes: int
    models: tuple[ModelIdentity, ...]
    fingerprint: str
    blobs: str = ""
    """Names the blob store it reads and writes, which must be the engine's."""
    answers: int = 0
    serves: tuple[str, ...] = ()
    transfers: str = ""


class Fetched(Struct, frozen=True):
    """What a worker has had of others since it started, and in how many seconds; `failed` tensors did not come."""

    tensors: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    failed: int = 0


class CacheUse(Struct):
    """Of one class of what a worker keeps: how much is there, and how it was used since the worker started."""

    nbytes: int = 0
    entries: int = 0
    hits: int = 0
    misses: int = 0
    evicted: int = 0


class Weights(Struct, frozen=True):
    """What it takes to have a component: bytes, and seconds when it was last loaded, None for never."""

    nbytes: int
    load_s: float | None = None


class Heartbeat(Struct, frozen=True, tag="heartbeat"):
    """Sent by the link's thread, also while a step runs.

    `sent` and `received` count the messages since the worker's last `Hello`, other than heartbeats: a wire that
    reconnects may lose some, and then the two ends count differently. None: the worker does not count.

    `running` is what the executor is at. It is also said when a unit is begun while answers before it are still being
    stored, so that it is known at any time, or else it is the oldest unit that is not answered.
    """

    queued: int
    resident_tensors: int
    resident_bytes: int
    sent: int | None = None
    received: int | None = None
    caches: dict[str, CacheUse] = {}
    """By class."""
    resident: tuple[str, ...] = ()
    """The components that are loaded, `<model>/<component>`, of those with weights."""
    weights: dict[str, Weights] = {}
    """All of those."""
    weights_bytes: int | None = None
    """How much of them is loaded at once; None where all may be."""
    running: tuple[UnitId, ...] = ()
    fetched: Fetched = Fetched()


class StepResult(Struct, frozen=True, tag="step_result"):
    """What a step made. The bytes of the blobs named in `inline` follow as frames; larger ones are already stored.

    `seconds` is its share of `batch_seconds`: as much as that of each of the `batch` units that were executed together.
    """

    id: UnitId
    tensors: dict[str, TensorRef] = {}
    artifacts: tuple[ArtifactRef, ...] = ()
    scalars: dict[str, Scalar] = {}
    seconds: float = 0.0
    error: StepError | None = None
    inline: tuple[str, ...] = ()
    observed: dict[str, float] = {}
    """What observers have measured. Nothing follows from it, and two runs of a step may differ in it."""
    batch: int = 1
    batch_seconds: float = 0.0
    loading_s: float = 0.0
    """What loading and compiling took before it could run; not among its seconds."""
    reused: bool = False
    """The worker had it from an equal step: its seconds say nothing of what such a step takes."""


class Released(Struct, frozen=True, tag="released"):
    """Nothing of this job up to this epoch is left here; `dropped` units of it were queued and did not run."""

    job: str
    epoch: int
    dropped: tuple[UnitId, ...]


class Goodbye(Struct, frozen=True, tag="goodbye"):
    """A worker that leaves, with the reason in words. A `clean` one has finished what it was running."""

    reason: str
    clean: bool = False


WorkerMessage: TypeAlias = Hello | Heartbeat | StepResult | Released | Goodbye


def members(batch: Batch, frames: Sequence[bytes]) -> list[tuple[WorkUnit, list[bytes]]]:
    """Each unit of a batch with the frames that are its own."""
    ends = accumulate(len(unit.inline) for unit in batch.units)
    return [(unit, list(frames[end - len(unit.inline) : end])) for unit, end in zip(batch.units, ends, strict=True)]


def inline_of(message: WorkUnit | Batch) -> tuple[str, ...]:
    """The names of the frames that follow."""
    if isinstance(message, WorkUnit):
        return message.inline
    return tuple(digest for unit in message.units for digest in unit.inline)


CHECKSUM = 4
"""Bytes at the end of a message."""

_encode = msgspec.msgpack.Encoder().encode
_decode_engine_message = msgspec.msgpack.Decoder(EngineMessage).decode
_decode_worker_message = msgspec.msgpack.Decoder(WorkerMessage).decode


def encode(message: object) -> bytes:
    data = _encode(message)
    return data + crc32(data).to_bytes(CHECKSUM, "big")


def decode_engine_message(data: bytes) -> EngineMessage:
    """Raises msgspec.DecodeError."""
    return _decode_engine_message(_undamaged(data))


def decode_worker_message(data: bytes) -> WorkerMessage:
    """Raises msgspec.DecodeError."""
    return _decode_worker_message(_undamaged(data))


def _undamaged(data: bytes) -> bytes:
    message, checksum = data[:-CHECKSUM], data[-CHECKSUM:]
    if crc32(message).to_bytes(CHECKSUM, "big") != checksum:
        raise msgspec.DecodeError("its checksum is of other bytes")
    return message
