"""What steps take of a device, in seconds: predicted from how much work they are, and learnt from what they took.

Nothing is admitted on an optimistic figure: `careful_s` is above what most steps of a kind take, no less than the first
ones on their workers where there are no others, and well above what is only predicted.
"""

from collections.abc import Iterator, Mapping

from msgspec import Struct, field

from cards.wire import ModelIdentity
from engine.scheduling.ready import Adapters, Group

CPU_FLOPS = 0.08e12
"""A second, as a prior: a float32 matrix product of 2048 x 2048 on two cores of a server CPU (AMD EPYC, AVX-512),
measured.
"""

GPU_FLOPS = 100e12
"""A second, as a prior: what models make of a GPU's bfloat16."""

UNKNOWN_S = 1.0
"""A step of which nothing is known."""

MARGIN = 2.0
"""So many times what is predicted is careful, and no less than `LEAST_S`."""

LEAST_S = 0.02

DEVIATIONS = 2.0
"""So many mean deviations above the mean: with times that scatter evenly, one step in twenty takes longer."""

LEAST_SHARE = 10.0
"""One in so many of the operations that a device is thought to do: no slower is a step that was never timed."""

WEIGHT = 0.1
"""Of the newest sample, once there are as many others as that makes."""

MOST = 2000
"""Kinds that are remembered, and of each the workers that are warm."""


class StepKind(Struct, frozen=True):
    """Steps that take as long as each other. `device` says on what kind of device, of which pool."""

    pool: str
    device: str
    model: ModelIdentity
    loop: str
    kind: str
    shape: str = ""
    """Size and frames."""
    precision: str = ""
    policy: str = ""
    """Of guidance, and what else is done to a step."""
    batch: int = 1
    """Steps that are executed together."""


class Rate(Struct):
    """What steps of a kind make of a kind of device, in operations a second: a decoder makes less of it than a
    transformer. Before one was timed it is the slowest there, the `prior` among them, down to a part of that: steps
    of next to no work make nothing of a device, and say nothing of others.
    """

    prior: float
    others: Mapping[tuple[str, str], "Rate"] = {}
    """Of this device, by the loop and the kind of its step."""
    timed: float = 0.0
    samples: int = 0

    @property
    def flops(self) -> float:
        if self.samples:
            return self.timed
        slowest = min([self.prior, *(other.timed for other in self.others.values() if other.samples)])
        return max(slowest, self.prior / LEAST_SHARE)

    def took(self, flops: int, seconds: float) -> None:
        self.samples += 1
        self.timed += max(WEIGHT, 1 / self.samples) * (flops / seconds - self.timed)


class Figure(Struct):
    """What the steps of a kind take: a running mean, and how far from it they are on average."""

    rate: Rate
    flops: int = 0
    """Of a step; 0 where that is not known."""
    mean_s: float = 0.0
    deviation_s: float = 0.0
    samples: int = 0
    cold_s: float = 0.0
    """The mean of the first one on each worker, which are no samples: a worker makes things ready with it, and of a
    batch it measures whether its members may share. So it does when it has loaded the model again. As long as there are
    no others, as where models take turns at every step, it is what a step takes: others take less.
    """
    cold: int = 0
    warm: set[tuple[str, Adapters]] = field(default_factory=set)
    """The workers that have had their first, of a batch for each of its adapters."""

    @property
    def expected_s(self) -> float:
        if self.samples or self.cold:
            return self.mean_s if self.samples else self.cold_s
        return self.flops / self.rate.flops if self.flops else UNKNOWN_S

    @property
    def careful_s(self) -> float:
        if self.samples:
            return self.mean_s + DEVIATIONS * self.deviation_s
        return max(LEAST_S, self.cold_s if self.cold else MARGIN * self.expected_s)

    def took(self, seconds: float, worker: str, adapters: Adapters = ()) -> None:
        """A step was timed."""
        if (worker, adapters) not in self.warm:
            if len(self.warm) >= MOST:
                self.warm.clear()
            self.warm.add((worker, adapters))
            self.cold += 1
            self.cold_s += (seconds - self.cold_s) / self.cold
            return
        self.samples += 1
        weight = max(WEIGHT, 1 / self.samples)
        off = seconds - self.mean_s
        self.mean_s += weight * off
        self.deviation_s += weight * ((abs(off) if self.samples > 1 else seconds / 2) - self.deviation_s)
        self.teach(seconds)

    def teach(self, seconds: float) -> None:
        """What a step took says what its kind makes of the device, if its work is known."""
        if self.flops and seconds > 0:
            self.rate.took(self.flops, seconds)


class Priced(Struct, frozen=True):
    """The steps of one kind of a job on one kind of device."""

    kind: StepKind
    figure: Figure
    peak_bytes: int
    group: Group
    needs: tuple[str, ...] = ()
    """What such steps are to have loaded."""


class CostModel:
    """Figures are handed out once and stay as true as they can be: what is learnt changes them where they are.

    `rates` are what devices do in a second, where somebody has said so.
    """

    def __init__(self, rates: Mapping[str, float] | None = None) -> None:
        self._given = dict(rates or {})
        self._rates: dict[str, dict[tuple[str, str], Rate]] = {}
        self._figures: dict[StepKind, Figure] = {}

    def figure(self, kind: StepKind, flops: int = 0) -> Figure:
        """That of a kind, whose steps are so much work as far as is known."""
        if (there := self._figures.get(kind)) is not None:
            there.flops = there.flops or flops
            return there
        if len(self._figures) >= MOST:
            del self._figures[next(iter(self._figures))]
        made = self._figures[kind] = Figure(self._rate(kind), flops)
        return made

    def timed(self, kind: StepKind) -> Figure | None:
        """That of a kind of which steps were timed."""
        figure = self._figures.get(kind)
        return figure if figure is not None and figure.samples else None

    def left(self, worker: str, model: ModelIdentity | None = None) -> None:
        """It has nothing ready any more, of this model or of any: what it does next is its first."""
        for kind, figure in self._figures.items():
            if figure.warm and model in (None, kind.model):
                figure.warm = {one for one in figure.warm if one[0] != worker}

    def known(self) -> Iterator[tuple[StepKind, Figure]]:
        """All that steps have been lined up of, on devices that were there."""
        return ((kind, figure) for kind, figure in self._figures.items() if kind.pool)

    def measured(self) -> Iterator[tuple[StepKind, Figure]]:
        return ((kind, figure) for kind, figure in self._figures.items() if figure.samples or figure.cold)

    def _rate(self, kind: StepKind) -> Rate:
        there, what = self._rates.setdefault(kind.device, {}), (kind.loop, kind.kind)
        if what not in there:
            prior = CPU_FLOPS if kind.device.startswith("device=cpu") else GPU_FLOPS
            there[what] = Rate(self._given.get(kind.device, prior), there)
        return there[what]
