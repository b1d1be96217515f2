"""What has happened to a job. These are on disk for ever.

Rule 1: an event is a fact. Its name is in the past tense and its fields never change meaning.
Rule 2: a new field has a default. A new meaning is a new event.
Rule 3: the tag is spelled out, so renaming a class cannot orphan a log.
"""

from collections.abc import Mapping
from typing import TypeAlias, get_args

import msgspec
from msgspec import Struct

from cards.request import ResolvedRequest
from cards.wire import ArtifactRef, ModelIdentity, Scalar, TensorRef
from engine.errors import UnknownEvent, UnreadableBody
from engine.upcast import UPCASTS, Upcast, upcast
from store.journal import Event, NewEvent


class JobSubmitted(Struct, frozen=True, kw_only=True, tag="job_submitted"):
    """All that the outputs depend on: the request with its seed, and the card and weights by content."""

    job: str
    request: ResolvedRequest
    model: ModelIdentity
    submitted_at: float


class NoticeGiven(Struct, frozen=True, kw_only=True, tag="notice_given"):
    """Something the caller should know, such as words outside the model's vocabulary."""

    code: str
    field: str
    message: str


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
    """Steps [0, step] of the node are done. `tensors` are what this one made, by content."""

    node: str
    step: int
    kind: str
    tensors: dict[str, TensorRef]
    scalars: dict[str, Scalar] = {}
    artifacts: tuple[ArtifactRef, ...] = ()
    worker: str = ""
    seconds: float = 0.0


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
    """`kind` is the failure class: error, oom, poisoned, corrupt_checkpoint."""

    kind: str
    message: str
    node: str
    step: int
    attempt: int


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
    except msgspec.DecodeError as error:
        raise UnreadableBody(f"event {event.version} ({event.type})", str(error)) from error
