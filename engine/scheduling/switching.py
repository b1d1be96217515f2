"""Several models on a device with room for some: whose steps go first, and when it is time to load others.

Loading takes as long as many steps, so they take turns: a turn lasts until what the next one has to load is a small
share of it. Who has waited longest is next, so nobody waits longer than the turns of all others.
"""

from collections.abc import Collection, Mapping, Sequence
from statistics import median

from msgspec import Struct

from cards.wire import Weights

LOADED_PER_S = 1e9
"""Bytes, by a device that has loaded nothing yet."""


class Device(Struct, frozen=True, kw_only=True):
    """What a worker says of itself. Its turn `began` when it last loaded anything."""

    resident: Collection[str]
    weights: Mapping[str, Weights]
    began: float


class Wish(Struct, frozen=True):
    """A step that could run here. `components` are those that it needs, `<model>/<component>`."""

    model: str
    components: tuple[str, ...]
    since: float
    """When it became ready."""
    seconds: float = 0.0
    """What there is to do with them: this step, and what its job has behind it."""


class Turns(Struct, frozen=True):
    """While others wait, a turn lasts for `least_s` to `most_s`: so long that loading is this `share` of it."""

    share: float = 0.1
    least_s: float = 1.0
    most_s: float = 120.0

    def lasts(self, loading_s: float) -> float:
        """Before one that has to load for so long."""
        return min(self.most_s, max(self.least_s, loading_s / self.share))


class Preference(Struct, frozen=True):
    """`models` have the steps that go first; they are to load what is in `loads`, which takes `loading_s`."""

    models: frozenset[str] = frozenset()
    loads: frozenset[str] = frozenset()
    loading_s: float = 0.0

    def goes_first(self, device: Device, wish: Wish) -> bool:
        lacks = absent(device, wish)
        return bool(lacks) == bool(self.loads) and lacks <= self.loads


TURNS = Turns()


def prefer(device: Device, wishes: Sequence[Wish], now: float, turns: Turns = TURNS) -> Preference:
    """What runs with what is loaded, unless that is nothing or its turn is over."""
    by_lack: dict[frozenset[str], list[Wish]] = {}
    for wish in wishes:
        by_lack.setdefault(absent(device, wish), []).append(wish)
    here = by_lack.pop(frozenset(), [])
    if not by_lack:
        return Preference(_models(here))
    if not here:
        return _of(device, *min(by_lack.items(), key=lambda side: (_price(device, *side), *_age(*side))))
    following = _of(device, *min(by_lack.items(), key=lambda side: _age(*side)))
    over = now - device.began >= turns.lasts(following.loading_s)
    return following if over else Preference(_models(here))


def absent(device: Device, wish: Wish) -> frozenset[str]:
    """What would have to be loaded."""
    return frozenset(name for name in wish.components if name in device.weights and name not in device.resident)


def loading_s(device: Device, names: Collection[str]) -> float:
    """As their last loads took, or as their bytes take at this device's rate."""
    known = [one.nbytes / one.load_s for one in device.weights.values() if one.load_s]
    rate = median(known) if known else LOADED_PER_S
    return sum(
        one.nbytes / rate if one.load_s is None else one.load_s for one in map(device.weights.__getitem__, names)
    )


def _of(device: Device, lacks: frozenset[str], wishes: Sequence[Wish]) -> Preference:
    return Preference(_models(wishes), lacks, loading_s(device, lacks))


def _models(wishes: Sequence[Wish]) -> frozenset[str]:
    return frozenset(wish.model for wish in wishes)


def _price(device: Device, lacks: frozenset[str], wishes: Sequence[Wish]) -> float:
    """Seconds of loading for each second of work."""
    return loading_s(device, lacks) / max(sum(wish.seconds for wish in wishes), 1e-9)


def _age(lacks: frozenset[str], wishes: Sequence[Wish]) -> tuple[float, list[str]]:
    """The oldest first."""
    return min(wish.since for wish in wishes), sorted(lacks)
