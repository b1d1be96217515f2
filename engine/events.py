"""What has happened to a job. These are on disk for ever.

Rule 1: an event is a fact. Its name is in the past tense and its fields never change meaning.
Rule 2: a new field has a default. A new meaning is a new event.
Rule 3: the tag is spelled out, so renaming a class cannot orphan a log.
"""

from collections.abc import Mapping
from typing import TypeAlias, get_args

import msgspec
from msgspec import Struct

from cards.loop import LoopState
from cards.request import RequestChanges, ResolvedRequest
from cards.wire import ArtifactRef, ModelIdentity, Refold, Scalar, TensorRef
from engine.errors import UnknownEvent, UnreadableBody
from engine.upcast import UPCASTS, Upcast, upcast
from store.journal import Event, NewEvent


class JobSubmitted(Struct, frozen=True, kw_only=True, tag="job_submitted"):
    """All that the outputs depend on: the request with its seed, its inputs, and the card and weights by content."""

    job: str
    request: ResolvedRequest
    model: ModelIdentity
    submitted_at: float
    inputs: dict[str, TensorRef] = {}
    """What the card's program reads as `request.<name>`: a picture to animate, a latent to go on from."""


class NoticeGiven(Struct, frozen=True, kw_only=True, tag="notice_given"):
    """Something the caller should know, such as words outside the model's vocabulary."""

    code: str
    field: str
    message: str


class Place(Struct, frozen=True):
    """Where in its program a job is: `step` steps of the `index`-th node are done. `started` once that node is."""

    index: int = 0
    step: int = 0
    steps: int = 0
    started: bool = False


class Stage(Struct, frozen=True):
    """A node that a job comes to, and the state to go on from there; without one the node begins."""

    place: Place
    state: LoopState | None = None


class Standing(Struct, frozen=True, kw_only=True):
    """All that the steps of a job have made of it, as it was after one of them."""

    place: Place
    route: tuple[Stage, ...]
    state: LoopState | None
    request: ResolvedRequest
    notices: tuple[NoticeGiven, ...]
    outputs: dict[str, TensorRef]
    artifacts: dict[str, ArtifactRef]
    fingerprint: str | None
    exact: bool
    refolds: tuple[Refold, ...] = ()
    """What makes the tensors again that are not stored."""


class JobAdmitted(Struct, frozen=True, kw_only=True, tag="job_admitted"):
    """An engine took the job for the first time."""

    engine: str


class JobRecovered(Struct, frozen=True, kw_only=True, tag="job_recovered"):
    """An engine took the job over from its log, with `node` and `step` as the place where it goes on."""

    engine: str
    node: str
    step: int


class JobReleased(Struct, frozen=True, kw_only=True, tag="job_released"):
    """The engine that had the job handed it back on purpose."""

    engine: str


class NodeStarted(Struct, frozen=True, kw_only=True, tag="node_started"):
    """A node of the program begins; `steps` of it are to come."""

    node: str
    loop: str
    semantics: str
    steps: int


class StepCompleted(Struct, frozen=True, kw_only=True, tag="step_completed"):
    """Steps [0, step] of the node are done. `tensors` are what this one made, by content.

    The bytes of the `derived` among them are not stored: they follow from what the step read and its other tensors.
    `observed` is what a deployment's observers have measured of it.
    """

    node: str
    step: int
    kind: str
    tensors: dict[str, TensorRef]
    scalars: dict[str, Scalar] = {}
    artifacts: tuple[ArtifactRef, ...] = ()
    worker: str = ""
    seconds: float = 0.0
    derived: tuple[str, ...] = ()
    observed: dict[str, float] = {}


class NodeCompleted(Struct, frozen=True, kw_only=True, tag="node_completed"):
    node: str
    outputs: dict[str, TensorRef]


class NumericsChanged(Struct, frozen=True, kw_only=True, tag="numerics_changed"):
    """From here on the job runs under this fingerprint. If it ran under another before, its outputs are inexact."""

    fingerprint: str


class WorkerLost(Struct, frozen=True, kw_only=True, tag="worker_lost"):
    """The worker died or went silent with a unit of this job; `blamed` if that unit was the one running."""

    worker: str
    reason: str
    blamed: bool


class CancelRequested(Struct, frozen=True, kw_only=True, tag="cancel_requested"):
    reason: str = ""


class JobCancelled(Struct, frozen=True, kw_only=True, tag="job_cancelled"):
    """No worker runs anything of this job any more."""


class JobCompleted(Struct, frozen=True, kw_only=True, tag="job_completed"):
    pass


class JobFailed(Struct, frozen=True, kw_only=True, tag="job_failed"):
    """`kind` is the failure class: error, oom, nan, poisoned, corrupt_checkpoint, too_large."""

    kind: str
    message: str
    node: str
    step: int
    attempt: int


class JobPaused(Struct, frozen=True, kw_only=True, tag="job_paused"):
    """No step is sent from here on. One that is with a worker still counts when it comes back."""

    reason: str = ""


class JobResumed(Struct, frozen=True, kw_only=True, tag="job_resumed"):
    pass


class JobQuarantined(Struct, frozen=True, kw_only=True, tag="job_quarantined"):
    """Somebody wants this job left alone: no engine touches it, and what is still out decides nothing."""

    reason: str = ""


class QuarantineLifted(Struct, frozen=True, kw_only=True, tag="quarantine_lifted"):
    """The job goes on from its last checkpoint; one that had failed has a new chance."""


class JobRetried(Struct, frozen=True, kw_only=True, tag="job_retried"):
    """Somebody gave a job that had failed or been cancelled a new chance, from its last checkpoint."""

    reason: str = ""


class JobTerminated(Struct, frozen=True, kw_only=True, tag="job_terminated"):
    """Cancelled at once: a worker may still run a step of it, which decides nothing."""

    reason: str = ""


class JobForked(Struct, frozen=True, kw_only=True, tag="job_forked"):
    """This job shares the first `at_step` steps of another: they follow as they are in its log."""

    parent: str
    at_step: int
    changes: RequestChanges = RequestChanges()


class RequestChanged(Struct, frozen=True, kw_only=True, tag="request_changed"):
    """From here on the job runs for this request, with these notices.

    It goes through the nodes of `route`, and after the last in the program's order: earlier nodes run again if the
    request changes what they begin with, and the one that the job was in goes on from the tensors it had.
    """

    request: ResolvedRequest
    route: tuple[Stage, ...]
    notices: tuple[NoticeGiven, ...] = ()


class JobRewound(Struct, frozen=True, kw_only=True, tag="job_rewound"):
    """The job is where it was after `to_step` steps of its program. What came later stays in the log and is void."""

    to_step: int
    standing: Standing
    reason: str = ""


class StepPinned(Struct, frozen=True, kw_only=True, tag="step_pinned"):
    """What the job needs to go on from after `step` steps of its program is to stay stored, for as long as the job."""

    step: int
    reason: str = ""


class StepUnpinned(Struct, frozen=True, kw_only=True, tag="step_unpinned"):
    """Retention decides again about what `step` steps left."""

    step: int


class JobMigrated(Struct, frozen=True, kw_only=True, tag="job_migrated"):
    """The job's next step is for the workers of this pool, or for this engine."""

    pool: str | None = None
    engine: str | None = None
    reason: str = ""


class JobImported(Struct, frozen=True, kw_only=True, tag="job_imported"):
    """The log up to here was written to another store, and goes on in this one."""

    origin: str


class JobMovedAway(Struct, frozen=True, kw_only=True, tag="job_moved_away"):
    """The log goes on in another store, and no more in this one."""

    to: str


JobEvent: TypeAlias = (
    JobSubmitted
    | NoticeGiven
    | JobAdmitted
    | JobRecovered
    | JobReleased
    | NodeStarted
    | StepCompleted
    | NodeCompleted
    | NumericsChanged
    | WorkerLost
    | CancelRequested
    | JobCancelled
    | JobCompleted
    | JobFailed
    | JobPaused
    | JobResumed
    | JobQuarantined
    | QuarantineLifted
    | JobRetried
    | JobTerminated
    | JobForked
    | RequestChanged
    | JobRewound
    | StepPinned
    | StepUnpinned
    | JobMigrated
    | JobImported
    | JobMovedAway
)

EVENT_TYPES: dict[str, type[JobEvent]] = {str(kind.__struct_config__.tag): kind for kind in get_args(JobEvent)}

_encode = msgspec.msgpack.Encoder().encode
_decoders = {tag: msgspec.msgpack.Decoder(kind).decode for tag, kind in EVENT_TYPES.items()}


def tag(event: JobEvent) -> str:
    return str(event.__struct_config__.tag)


def encode(event: JobEvent) -> NewEvent:
    return NewEvent(tag(event), _encode(event))


def decode(event: Event, upcasts: Mapping[str, Upcast] = UPCASTS) -> JobEvent:
    """An event of any release, in today's words. Raises UnknownEvent for a tag that nobody knows, UnreadableBody."""
    try:
        type, body = upcast(event.type, event.body, upcasts)
        if type not in _decoders:
            raise UnknownEvent(type)
        return _decoders[type](body)
    except (msgspec.DecodeError, TypeError) as error:  # a column of SQLite may have a text where bytes were
        raise UnreadableBody(f"event {event.version} ({event.type})", str(error)) from error


def made(step: StepCompleted) -> list[str]:
    """The digests of all bytes that a step left behind; what it derived is nowhere, unless another step has it too."""
    tensors = (ref.digest for name, ref in step.tensors.items() if name not in step.derived)
    return [*tensors, *(ref.digest for ref in step.artifacts)]
