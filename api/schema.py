"""The public JSON. What comes in is translated to the engine's words at the door, what goes out from them.

A field keeps its meaning for as long as `/v1` is served; a new one may appear at any time.
"""

from typing import Annotated, Literal, get_args

from msgspec import Meta, Struct, field

from cards.card import OutputSpec, Range
from engine.events import JobEvent

Status = Literal["queued", "running", "paused", "quarantined", "completed", "failed", "cancelled", "moved"]

Word = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""Any machine integer: the card says how far a number may go, this only keeps out what no card could ask about."""

Position = Annotated[int, Meta(ge=0, le=2**63 - 1, description="A place in the log; what follows it is answered.")]
PageSize = Annotated[int, Meta(ge=1, le=1000)]
Text = Annotated[str, Meta(max_length=256, pattern=r"^[^\x00]*$")]


# -- in -----------------------------------------------------------------------------------------------------------


class JobRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to generate. What is left out or null is the model's to decide; a seed is then drawn once and kept."""

    model: str
    prompt: str
    negative_prompt: str = ""
    seed: Word | None = None
    steps: Word | None = None
    guidance: float | None = None
    preview_every: Word = 0
    priority: Word = 0
    metadata: dict[str, str] = {}


class JobsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    status: Annotated[str, Meta(pattern=f"^({'|'.join(get_args(Status))})$")] | None = None
    model: Text | None = None
    after: Annotated[str, Meta(description="The id of the last job of the page before.")] | None = None
    limit: PageSize = 20


class EventsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`limit` is for JSON; a stream goes on to the job's last event."""

    after: Position | None = None
    limit: PageSize = 1000


# -- out: jobs ------------------------------------------------------------------------------------------------------


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
    """Why a job failed. `class` is error, oom, poisoned or corrupt_checkpoint."""

    kind: str = field(name="class")
    message: str
    node: str
    step: int
    attempt: int


class Job(Struct, frozen=True, kw_only=True):
    """`card` and `weights` are the model by content; `exact` says that all steps ran under one numerics fingerprint."""

    id: str
    object: Literal["job"] = "job"
    status: Status
    model: str
    prompt: str
    negative_prompt: str
    seed: int
    steps: int
    guidance: float
    preview_every: int
    priority: int
    metadata: dict[str, str]
    created_at: float
    progress: Progress
    artifacts: list[Artifact]
    warnings: list[Warning]
    error: Failure | None
    held_up: str | None
    """Why no engine here can go on with it, if that is so."""
    exact: bool
    card: str
    weights: str


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


# -- out: what happened ---------------------------------------------------------------------------------------------


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


# -- out: the engine ------------------------------------------------------------------------------------------------


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
    servable: bool


class ModelList(Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Model]


class Live(Struct, frozen=True):
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
