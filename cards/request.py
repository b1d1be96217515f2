"""What a caller may ask of a card, and its limits."""

import random
from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType, structs

from cards import canvas
from cards.card import ModelCard, Range
from cards.errors import InvalidRequest
from cards.lora import Lora, check_strengths

MAX_SEED = 2**63 - 1
PRIORITIES = (-100, 100)
MAX_TENANT = 64
MAX_DEADLINE_S = 30 * 86_400


class GenerationRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One generation as it is asked for. What is None is the card's to decide."""

    model: str
    prompt: str
    negative_prompt: str = ""
    seed: int | None = None
    steps: int | None = None
    guidance: float | None = None
    size: str | None = None
    """Pixels, as 832x480."""
    frames: int | None = None
    preview_every: int = 0
    priority: int = 0
    metadata: dict[str, str] = {}
    loras: tuple[Lora, ...] = ()
    """Of the files that come as the inputs `lora/0`, `lora/1`, ..., in the order in which they are applied."""
    continues: str | None = None
    """A finished job, whose clip is the beginning of this one's; seed and size are then that job's to decide."""
    interceptors: dict[str, float] = {}
    """Of those that the card has enabled: name -> threshold. They change what comes out."""
    tenant: str = ""
    """On whose account: policies share devices out by it."""
    deadline_s: float | None = None
    """Seconds from its submission by which it is wanted. One that is late is made all the same."""


class ResolvedRequest(Struct, frozen=True, kw_only=True):
    """The same with nothing left open: what a job's first event says, and all that its outputs depend on."""

    model: str
    prompt: str
    negative_prompt: str
    seed: int
    steps: int
    guidance: float
    preview_every: int
    priority: int
    metadata: dict[str, str]
    size: str | None = None
    """None where the card makes one size only, and so for `frames`."""
    frames: int | None = None
    loras: tuple[Lora, ...] = ()
    continues: str | None = None
    interceptors: dict[str, float] = {}
    tenant: str = ""
    deadline_s: float | None = None


class RequestChanges(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a fork asks for otherwise than its parent did. A model is never changed: its weights made what is there."""

    prompt: str | UnsetType = UNSET
    negative_prompt: str | UnsetType = UNSET
    seed: int | UnsetType = UNSET
    steps: int | UnsetType = UNSET
    guidance: float | UnsetType = UNSET
    size: str | UnsetType = UNSET
    frames: int | UnsetType = UNSET
    preview_every: int | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    metadata: dict[str, str] | UnsetType = UNSET
    strengths: tuple[float, ...] | UnsetType = UNSET
    """Of the job's LoRAs, in their order: the files stay as they are."""
    interceptors: dict[str, float] | UnsetType = UNSET
    """Those of the job, with other thresholds."""
    tenant: str | UnsetType = UNSET
    deadline_s: float | UnsetType | None = UNSET

    @property
    def fields(self) -> dict[str, object]:
        """Those that are set."""
        return {name: value for name, value in structs.asdict(self).items() if value is not UNSET}


def revise(request: ResolvedRequest, changes: RequestChanges, card: ModelCard) -> ResolvedRequest:
    """The request with some fields changed, checked like any other. Raises InvalidRequest."""
    fields = structs.asdict(request) | changes.fields
    if (strengths := fields.pop("strengths", None)) is not None:
        fields["loras"] = _with_strengths(request.loras, strengths)
    if fields["interceptors"].keys() != request.interceptors.keys():
        kept = ", ".join(request.interceptors) or "none"
        raise InvalidRequest(
            "interceptors", f"stay those of the job ({kept}), with other thresholds if need be; submit anew"
        )
    return resolve(GenerationRequest(**fields), card, random.Random())  # a seed is there: nothing is drawn


def _with_strengths(loras: Sequence[Lora], strengths: Sequence[float]) -> tuple[Lora, ...]:
    if len(strengths) != len(loras):
        raise InvalidRequest(
            "strengths", f"are {len(strengths)} for {len(loras)} LoRAs; give one for each, in their order"
        )
    return tuple(structs.replace(lora, strength=one) for lora, one in zip(loras, strengths, strict=True))


def resolve(request: GenerationRequest, card: ModelCard, chance: random.Random) -> ResolvedRequest:
    """Check a request against a card and fill in what it left out; a seed is drawn once, here.

    Raises InvalidRequest, which names the field and the remedy.
    """
    _check_text(request, card)
    _check_numbers(request)
    check_strengths(request.loras, card)
    _check_interceptors(request.interceptors, card)
    recipe = card.recipe
    size, frames = canvas.choose(request.size, request.frames, card)
    return ResolvedRequest(
        model=card.name,
        prompt=request.prompt,
        negative_prompt=request.negative_prompt,
        seed=chance.randrange(2**32) if request.seed is None else request.seed,
        steps=int(_choose("steps", request.steps, recipe.steps, recipe.method)),
        guidance=float(_choose("guidance", request.guidance, recipe.guidance, recipe.method)),
        preview_every=request.preview_every,
        priority=request.priority,
        metadata=request.metadata,
        size=size,
        frames=frames,
        loras=request.loras,
        continues=request.continues,
        interceptors=request.interceptors,
        tenant=request.tenant,
        deadline_s=request.deadline_s,
    )


def _check_text(request: GenerationRequest, card: ModelCard) -> None:
    if not request.prompt.strip():
        raise InvalidRequest("prompt", "is empty; say what the clip should show")
    for field in ("prompt", "negative_prompt"):
        length = len(getattr(request, field))
        if length > card.prompt_limit:
            raise InvalidRequest(field, f"has {length} characters; {card.name} takes up to {card.prompt_limit}")
        if "\0" in getattr(request, field):
            raise InvalidRequest(field, "has a NUL character; remove it")
    for key, value in request.metadata.items():
        if len(key) > 64 or len(value) > 512 or "\0" in key + value:
            raise InvalidRequest("metadata", "takes keys up to 64 and values up to 512 characters, without NUL")
    if len(request.metadata) > 16:
        raise InvalidRequest("metadata", f"has {len(request.metadata)} entries; up to 16 are kept")
    if len(request.tenant) > MAX_TENANT or "\0" in request.tenant:
        raise InvalidRequest("tenant", f"takes up to {MAX_TENANT} characters, without NUL")


def _check_numbers(request: GenerationRequest) -> None:
    if request.seed is not None and not 0 <= request.seed <= MAX_SEED:
        raise InvalidRequest("seed", f"must be from 0 to {MAX_SEED}; leave it out to have one drawn")
    if not 0 <= request.preview_every <= MAX_SEED:
        raise InvalidRequest("preview_every", "must be 0 (no previews) or a number of steps")
    least, most = PRIORITIES
    if not least <= request.priority <= most:
        raise InvalidRequest("priority", f"must be from {least} to {most}")
    if request.deadline_s is not None and not 0 < request.deadline_s <= MAX_DEADLINE_S:  # never true of a NaN
        raise InvalidRequest(
            "deadline_s", f"must be more than 0 and up to {MAX_DEADLINE_S} seconds, from when it is submitted"
        )


def _check_interceptors(asked: dict[str, float], card: ModelCard) -> None:
    allowed = {name: spec for loop in card.loops.values() for name, spec in (loop.interceptors or {}).items()}
    for name, threshold in asked.items():
        field = f"interceptors.{name}"
        if name not in allowed:
            raise InvalidRequest(field, f"{card.name} has none such enabled; there are: {', '.join(allowed) or 'none'}")
        if not 0 <= threshold <= allowed[name].most:  # which is never true of a NaN
            raise InvalidRequest(field, f"{threshold} is no threshold from 0 to {allowed[name].most:g}")
    if len(asked) > 1:
        raise InvalidRequest("interceptors", f"takes one at a time of {', '.join(allowed)}")


def _choose(field: str, asked: float | None, allowed: Range, method: str) -> float:
    if asked is None:
        return allowed.default
    if not allowed.least <= asked <= allowed.most:  # which is never true of a NaN
        raise InvalidRequest(
            field,
            f"{asked} is outside what this card's recipe ({method}) allows: {allowed.least:g} to {allowed.most:g}",
        )
    return asked
