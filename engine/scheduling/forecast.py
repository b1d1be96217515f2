"""What a job will take, before any of it has run: the steps of its program by kind, from sizes that its family says.

Walking a program and reading a checkpoint's headers takes its time: it is done once for all jobs of a shape, and never
on the event loop.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from msgspec import Struct

from cards.card import ModelCard
from cards.errors import BadCheckpoint, Unmeasured
from cards.family import Family
from cards.request import ResolvedRequest
from cards.sizes import WIDTH, Measurable
from engine.errors import LoopFailed
from engine.plan import KindPlan, plan
from engine.scheduling.ready import Demand

MOST = 500
"""Shapes of jobs that are remembered."""

Shape: TypeAlias = tuple[object, ...]


class Forecast(Struct, frozen=True):
    """`kinds` are in the order of the program; there are none where a family does not say its sizes."""

    kinds: tuple[KindPlan, ...] = ()

    @property
    def resident_bytes(self) -> int:
        """What the job has on its device at most, but for the activations of the step that runs."""
        return max((kind.tensor_bytes for kind in self.kinds), default=0)

    def peak_bytes(self, nodes: Collection[str]) -> int:
        """The activations of the largest step in these nodes."""
        return max((kind.activation_bytes for kind in self.kinds if kind.node in nodes), default=0)

    def demand(self, weights_bytes: int) -> Demand:
        """Of the largest step. Seconds are left out."""
        return Demand(0.0, self.resident_bytes, self.peak_bytes({kind.node for kind in self.kinds}), weights_bytes)

    def of(self, node: str, kind: str) -> KindPlan | None:
        return next((one for one in self.kinds if (one.node, one.kind) == (node, kind)), None)


NOTHING = Forecast()


class Forecasts:
    def __init__(self) -> None:
        self._made: dict[Shape, Forecast] = {}

    def known(self, request: ResolvedRequest, family: Family) -> Forecast | None:
        """One that is at hand, or None: then it takes a while to `make`."""
        if not isinstance(family, Measurable):
            return NOTHING
        return self._made.get(_shape(request))

    def make(self, request: ResolvedRequest, family: Family) -> Forecast:
        try:
            made = Forecast(plan(family, request).kinds)
        except (Unmeasured, BadCheckpoint, LoopFailed):  # its steps are timed like any others
            made = NOTHING
        if len(self._made) >= MOST:
            del self._made[next(iter(self._made))]
        self._made[_shape(request)] = made
        return made


def weights_bytes(card: ModelCard, names: Iterable[str] | None = None) -> int:
    """Of all components, or of these, in their precision."""
    parts = [card.components[name] for name in (card.components if names is None else names)]
    return sum(part.parameters * WIDTH[part.precision] for part in parts)


def policy_of(request: ResolvedRequest) -> str:
    """What is done to a step besides its one forward."""
    guided = "unguided" if request.guidance == 1.0 else "guided"
    return "+".join((guided, *sorted(request.interceptors)))


def shape_of(request: ResolvedRequest) -> str:
    """Size and frames, as 832x480x81; what the card alone decides is left out."""
    return "x".join(str(one) for one in (request.size, request.frames) if one is not None)


def precision_of(card: ModelCard, loop: str) -> str:
    """That of the first component which a loop's steps need."""
    return next((card.components[name].precision for name in card.loops[loop].components), "")


def _shape(request: ResolvedRequest) -> Shape:
    """All of a request that sizes hang on."""
    asked: Mapping[str, float] = request.interceptors
    return (
        request.model,
        request.size,
        request.frames,
        request.steps,
        request.guidance == 1.0,
        bool(request.negative_prompt),
        request.preview_every,
        len(request.loras),
        request.continues is None,
        tuple(sorted(asked)),
    )
