"""The public JSON that is asked, translated to the engine's words at the door. What is answered is in `api.schema`.

A field keeps its meaning for as long as `/v1` is served; a new one may appear at any time.
"""

from typing import Annotated, get_args

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from api.schema import Status
from cards.lora import Lora
from cards.request import GenerationRequest

Word = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""Any machine integer: the card says how far a number may go, this only keeps out what no card could ask about."""

Position = Annotated[int, Meta(ge=0, le=2**63 - 1, description="A place in the log; what follows it is answered.")]
IMAGE = "A PNG, JPEG or WebP file as a data URL or in base64, for a model that starts from one."
PageSize = Annotated[int, Meta(ge=1, le=1000)]
Text = Annotated[str, Meta(max_length=256, pattern=r"^[^\x00]*$")]
Tenant = Annotated[str, Meta(max_length=64, pattern=r"^[^\x00]*$")]
Words = Annotated[str, Meta(max_length=1000, pattern=r"^[^\x00]*$")]


class LoraFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A safetensors file in base64, and how strongly it is applied."""

    data: bytes
    strength: float = 1.0


class JobRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to generate. What is left out or null is the model's to decide; a seed is then drawn once and kept."""

    model: str
    prompt: str
    negative_prompt: str = ""
    seed: Word | None = None
    steps: Word | None = None
    guidance: float | None = None
    size: Annotated[str, Meta(max_length=256, description="Pixels, as 832x480.")] | None = None
    frames: Word | None = None
    image: Annotated[str, Meta(description=IMAGE)] | None = None
    preview_every: Word = 0
    priority: Word = 0
    metadata: dict[str, str] = {}
    loras: tuple[LoraFile, ...] = ()
    """In the order in which they are applied, for a model that takes them."""
    continues: Text | None = None
    """A completed job, whose clip this one's begins with."""
    interceptors: dict[str, float] = {}
    tenant: Tenant = ""
    """On whose account: devices are shared out by it where the engine's policy says so."""
    deadline_s: float | None = None
    """Seconds from its submission by which it is wanted. One that is late is made all the same."""

    def generation(self, loras: tuple[Lora, ...]) -> GenerationRequest:
        """The words of it, without what comes along."""
        words = structs.asdict(self) | {"loras": loras}
        del words["image"]
        return GenerationRequest(**words)


class Because(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why, for whoever reads the log."""

    reason: Words = ""


class Rewind(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Steps are counted over the whole program, in the order in which they were completed."""

    to_step: Word
    reason: Words = ""


class Pin(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Steps are counted as in a rewind. What this many left stays stored for as long as the job."""

    step: Word
    reason: Words = ""


class Unpin(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    step: Word


class MovedAway(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`version` is that of the last event in the bundle; `to` says where it went, for people."""

    version: Word
    to: Words = ""


class Collect(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """With `take_over` the other stores that have used these blobs are gone for good."""

    dry_run: bool = False
    take_over: bool = False


class Changes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is left out stays as it was."""

    prompt: str | UnsetType = UNSET
    negative_prompt: str | UnsetType = UNSET
    seed: Word | UnsetType = UNSET
    steps: Word | UnsetType = UNSET
    guidance: float | UnsetType = UNSET
    size: Text | UnsetType = UNSET
    frames: Word | UnsetType = UNSET
    preview_every: Word | UnsetType = UNSET
    priority: Word | UnsetType = UNSET
    metadata: dict[str, str] | UnsetType = UNSET
    strengths: tuple[float, ...] | UnsetType = UNSET
    """Of the job's LoRAs, in their order."""
    interceptors: dict[str, float] | UnsetType = UNSET
    """Those of the job, with other thresholds."""
    tenant: Tenant | UnsetType = UNSET
    deadline_s: float | UnsetType | None = UNSET


class Fork(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new job that shares the first `at_step` steps, counted over the whole program, and goes on with what is set."""

    at_step: Word
    set: Changes = Changes()


class Move(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`to` is `pool:NAME`, `engine:NAME`, or a name that is looked up among pools and then among engines."""

    to: Text
    dry_run: bool = False
    reason: Words = ""


class Components(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Those of a worker: all of a name if no models are named, all of a model if no components are."""

    components: tuple[Words, ...] = ()
    models: tuple[Words, ...] = ()


class JobsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    status: Annotated[str, Meta(pattern=f"^({'|'.join(get_args(Status))})$")] | None = None
    model: Text | None = None
    after: Annotated[str, Meta(description="The id of the last job of the page before.")] | None = None
    limit: PageSize = 20


class EventsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`limit` is for JSON; a stream goes on to the job's last event."""

    after: Position | None = None
    limit: PageSize = 1000
