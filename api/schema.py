"""The public JSON that is answered, translated from the engine's words at the door. What is asked is in `api.requests`.

A field keeps its meaning for as long as `/v1` is served; a new one may appear at any time.
"""

from typing import Literal

from msgspec import Struct, field

from cards.card import InputSpec, OutputSpec, Range
from cards.lora import Lora
from cards.wire import CacheUse, Fetched, Weights
from engine.events import JobEvent

Status = Literal["queued", "running", "paused", "quarantined", "completed", "failed", "cancelled", "moved"]

# -- jobs ----------------------------------------------------------------------------------------------------------


class Progress(Struct, frozen=True):
    """`step` of `steps` of the node are done; 0 of 0 before it has started. `fraction` counts nodes, not time."""

    node: str | None
    step: int
    steps: int
    fraction: float


class Artifact(Struct, frozen=True):
    name: str
    media_type: str
    bytes: int
    digest: str
    url: str


class Warning(Struct, frozen=True):
    """Something about the request that its caller should know, and that did not stop it."""

    code: str
    field: str
    message: str


class Failure(Struct, frozen=True):
    """Why a job failed. `class` is error, oom, nan, poisoned, too_large or corrupt_checkpoint."""

    kind: str = field(name="class")
    message: str
    node: str
    step: int
    attempt: int


class Parent(Struct, frozen=True):
    """The job that a fork shares its first `at_step` steps with."""

    id: str
    at_step: int


class Job(Struct, frozen=True, kw_only=True):
    """`card` and `weights` are the model by content; `exact` says that all steps ran under one numerics fingerprint,
    and none through an interceptor that was asked for."""

    id: str
    object: Literal["job"] = "job"
    status: Status
    model: str
    prompt: str
    negative_prompt: str
    seed: int
    steps: int
    guidance: float
    size: str | None
    frames: int | None
    """Null where the model makes one size only, and so for `size`."""
    inputs: dict[str, str]
    """What came along, as the digests of its tensors."""
    preview_every: int
    priority: int
    metadata: dict[str, str]
    interceptors: dict[str, float]
    tenant: str
    deadline_s: float | None
    """Seconds from `created_at`."""
    created_at: float
    progress: Progress
    artifacts: list[Artifact]
    warnings: list[Warning]
    error: Failure | None
    held_up: str | None
    """Why no engine here can go on with it, if that is so."""
    reason: str | None
    """Why it is paused or in quarantine, if it is and that was said."""
    attempt: int
    parent: Parent | None
    continues: str | None
    """The job whose clip this one's begins with."""
    pool: str | None
    """The only workers that may run it, if that was asked for."""
    owner: str | None
    """The engine that has it."""
    pins: tuple[int, ...]
    """Its steps that stay stored, by how many of its program they are."""
    exact: bool
    card: str
    weights: str
    loras: tuple[Lora, ...] = ()
    """By content."""


class Accepted(Struct, frozen=True, kw_only=True):
    """A job that was taken in."""

    id: str
    object: Literal["job.accepted"] = "job.accepted"
    status: Status


class Collected(Struct, frozen=True, kw_only=True):
    """Jobs by id, and bytes that nothing names: small ones in rows, large ones in the blob store."""

    purged: tuple[str, ...]
    inline_blobs: int
    inline_bytes: int
    stored_blobs: int
    stored_bytes: int
    live_blobs: int


class JobSummary(Struct, frozen=True, kw_only=True):
    """A job as lists show it."""

    id: str
    object: Literal["job.summary"] = "job.summary"
    status: Status
    model: str
    priority: int
    created_at: float
    updated_at: float


class JobPage(Struct, frozen=True, kw_only=True):
    """Newest first. The next page is the one `after` the `last_id`."""

    object: Literal["list"] = "list"
    data: list[JobSummary]
    has_more: bool
    last_id: str | None


class Cancellation(Struct, frozen=True):
    id: str
    outcome: Literal["cancelled", "cancelling", "already_terminal"]


class Operated(Struct, frozen=True):
    """`unchanged`: it was so already, and nothing was written."""

    id: str
    outcome: Literal["done", "unchanged"]
    status: Status


class Migration(Struct, frozen=True, kw_only=True):
    """A move, or the plan of one: the job's next step, of this node, takes `bytes` of tensors along."""

    id: str
    outcome: Literal["done", "unchanged", "planned"]
    origin: str | None = field(name="from")
    to: str
    node: str | None
    step: int
    bytes: int


# -- what happened -------------------------------------------------------------------------------------------------


class Event(Struct, frozen=True):
    """One event of a job's log. `position` is what a reader continues after."""

    position: int
    version: int
    at: float
    type: str
    data: JobEvent


class EventPage(Struct, frozen=True):
    data: list[Event]
    has_more: bool


class Checkpoint(Struct, frozen=True):
    """What one completed step left, as the digests of its tensors."""

    loop: str
    step: int
    tensors: dict[str, str]


# -- the engine ----------------------------------------------------------------------------------------------------


class Steps(Struct, frozen=True):
    least: int
    most: int
    default: int


class Model(Struct, frozen=True, kw_only=True):
    """A model and the limits of its recipe. `servable` says that a worker that runs it is there now."""

    id: str
    object: Literal["model"] = "model"
    task: str
    card: str
    family: str
    steps: Steps
    guidance: Range
    output: OutputSpec
    inputs: dict[str, InputSpec]
    """What may, or must, come along with a request."""
    servable: bool


class ModelList(Struct, frozen=True, kw_only=True):
    """`unusable` says of each registered model that this engine cannot open why, and the remedy."""

    object: Literal["list"] = "list"
    data: list[Model]
    unusable: dict[str, str]


class Worker(Struct, frozen=True, kw_only=True):
    """`outstanding` units are with it; a draining one gets no more. It was heard `heard_s` seconds ago."""

    id: str
    object: Literal["worker"] = "worker"
    pool: str
    host: str
    pid: int
    models: tuple[str, ...]
    ranks: int
    outstanding: int
    draining: bool
    heard_s: float
    resident: tuple[str, ...]
    """The components that are loaded, `<model>/<component>`."""
    weights: dict[str, Weights]
    """What it takes to have each of its components: bytes, and seconds when it was last loaded."""
    caches: dict[str, CacheUse]
    """What it keeps between jobs, by class."""
    serves: tuple[str, ...] = ()
    """Roles; all if there are none."""
    fetched: Fetched = Fetched()
    """What it has had of other workers' tensors."""


class WorkerList(Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Worker]


class Dismissal(Struct, frozen=True):
    id: str
    outcome: Literal["draining", "fenced"]


class Rest(Struct, frozen=True):
    """What the worker has been told. Its place in the list of workers says what is loaded."""

    id: str
    outcome: Literal["falling_asleep", "waking"]
    components: tuple[str, ...]


class Live(Struct, frozen=True):
    """`engine` is the name under which it holds its jobs."""

    engine: str
    status: Literal["ok"] = "ok"


class Ready(Struct, frozen=True):
    ready: bool
    reasons: tuple[str, ...]


class Error(Struct, frozen=True, kw_only=True):
    """`param` names the field, parameter or header that is wrong, if it is one; `code` is for programs."""

    type: Literal["invalid_request_error", "server_error"]
    message: str
    param: str | None
    code: str


class ErrorBody(Struct, frozen=True):
    error: Error
