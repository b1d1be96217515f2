"""What steps cost in a simulated world: how long they take alone and together, and what is predicted of them."""

from collections.abc import Mapping
from itertools import pairwise

from msgspec import Struct, field

from cards.wire import ModelIdentity
from engine.scheduling.ready import Group
from engine.scheduling.scheduler import Limits
from ops.bench.falsifier.kinds import KINDS, Part

SLO_TIMES, SLO_S = 2.0, 1.0
"""In time is what is there within so many times what it takes alone, and so many seconds."""

Curve = Mapping[int, float]
"""Steps that run together, and their throughput in times of that of steps run one by one."""

ALONE: Curve = {1: 1.0}

NO_GAIN: Mapping[str, Curve] = {}
"""All work saturates the device by itself."""

PUBLISHED: Mapping[str, Curve] = {
    "thumbnail": {1: 1.0, 2: 1.82, 3: 2.69, 8: 3.14},
    "picture": {1: 1.0, 2: 1.02, 8: 1.02},
}
"""Qwen-Image on an H200, 512x512 and 1024x1024 (SGLang, pull request 22183). Video gains nothing: at 480p a step of one
clip has 20,000 tokens and more."""

GENEROUS: Mapping[str, Curve] = {
    "thumbnail": {1: 1.0, 2: 1.82, 3: 2.69, 8: 3.14},
    "picture": {1: 1.0, 2: 1.4, 8: 1.8},
    "draft": {1: 1.0, 2: 1.2, 4: 1.3},
    "clip": {1: 1.0, 2: 1.1, 4: 1.2},
    "sound": {1: 1.0, 2: 1.2, 4: 1.3},
}
"""An assumption, to see what would change if video gained after all."""


class World(Struct, frozen=True, kw_only=True):
    slower: float = 1.0
    """What steps take, in times of `kinds`."""
    gains: Mapping[str, Curve] = field(default_factory=lambda: PUBLISHED)
    predicted: Mapping[str, float] = {}
    """What the scheduler is told of a kind, in times of what is so."""
    priorities: Mapping[str, int] = {}
    """Of kinds, where it is not 0."""
    films: bool = True
    """Whether any are asked for."""
    films_at_once: int = 1
    """They are asked for by so many at a time, when the first of these is."""
    batch_s: float = Limits().batch_s
    within: tuple[float, float] = (SLO_TIMES, SLO_S)
    eager: bool = False
    """Whether the device is sent a second placement as soon as there is one, whatever it is."""


class Step(Struct, frozen=True):
    """One step of a kind in a world."""

    node: str
    seconds: float
    """If it runs alone."""
    predicted_s: float
    left_s: float
    """Predicted, from this step to the last."""
    held_bytes: int
    group: Group | None
    curve: Curve
    shows: bool
    """Whether something can be seen once it is done."""


def steps(kind: str, world: World) -> tuple[Step, ...]:
    """All that a job of a kind does, in order."""
    about, factor = KINDS[kind], world.predicted.get(kind, 1.0)
    made: list[Step] = []
    left_s = 0.0
    each = [(part, number) for part in about.parts for number in range(part.steps)]
    for part, number in reversed(each):
        seconds = part.seconds * world.slower
        left_s += seconds * factor
        made.append(
            Step(
                node=part.node,
                seconds=seconds,
                predicted_s=seconds * factor,
                left_s=left_s,
                held_bytes=round(part.held_gb * 1e9),
                group=_group(kind, part),
                curve=world.gains.get(kind, ALONE) if _together(part) else ALONE,
                shows=part.shows and number == 0,
            )
        )
    return tuple(reversed(made))


def alone_s(kind: str, world: World) -> float:
    """How long a job takes if there is nothing else."""
    return KINDS[kind].seconds * world.slower


def identity(model: str) -> ModelIdentity:
    return ModelIdentity(model, "card", "weights")


def together_s(seconds: float, count: int, curve: Curve) -> float:
    """How long `count` steps take together. Between the points of a curve gains are linear, after them level."""
    return count * seconds / _gain(count, curve)


def _gain(count: int, curve: Curve) -> float:
    for (fewer, less), (more, most) in pairwise(sorted(curve.items())):
        if fewer <= count <= more:
            return less + (most - less) * (count - fewer) / (more - fewer)
    return curve[max(curve)]


def _together(part: Part) -> bool:
    return part.node in ("denoise", "base", "refine")


def _group(kind: str, part: Part) -> Group | None:
    about = KINDS[kind]
    return Group(identity(about.model), part.node, part.node, about.shape) if _together(part) else None
