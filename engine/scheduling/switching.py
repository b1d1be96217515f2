"""Several models on a device with room for some: whose steps go first, and when it is time to load others.

Loading takes as long as many steps, so they take turns: a turn lasts until what the next one has to load is a small
share of it. Who has waited longest is next, so nobody waits longer than the turns of all others.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from cards.wire import Weights
from engine.scheduling.ready import Ready

LOADED_PER_S = 1e9
"""Bytes, by a device that has loaded nothing yet."""


class Device(Struct, frozen=True, kw_only=True):
    """What a worker says of itself. Its turn `began` when it last loaded anything."""

    resident: Collection[str]
    weights: Mapping[str, Weights]
    began: float
    room_bytes: float = math.inf
    """For what is loaded at once."""
    last: str = ""
    """The job that had its last step here."""

    @property
    def takes_turns(self) -> bool:
        """Whether there is not room for all."""
        return sum([one.nbytes for one in self.weights.values()]) > self.room_bytes


class Wish(Struct, frozen=True):
    """A step that could run here. `components` are those that it needs, `<model>/<component>`."""

    model: str
    components: tuple[str, ...]
    since: float
    """When it became ready."""
    seconds: float = 0.0
    """What there is to do with them: this step, and what its job has behind it."""
    job: str = ""


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
    oldest = min(by_lack.items(), key=lambda side: _age(*side))
    if not here:
        waited_s = now - _age(*oldest)[0]
        bargain = min(by_lack.items(), key=lambda side: (_price(device, *side), *_age(*side)))
        return _of(device, *(oldest if waited_s > turns.most_s else bargain))
    following = _of(device, *oldest)
    over = now - device.began >= turns.lasts(following.loading_s)
    return following if over else Preference(_models(here))


def wish_of(ready: Ready) -> Wish:
    return Wish(ready.model.name, ready.needs, ready.since, ready.left_s, ready.job)


def absent(device: Device, wish: Wish) -> frozenset[str]:
    """What would have to be loaded.

    Where a step names more than there is room for, such as two experts of which it takes one, that is as much as fits.
    Once no more does, it is all there for the job that ran last, which goes on with what it took: if its jobs took
    turns with every step, each could find there what the other needs.
    """
    lacks = [name for name in wish.components if name in device.weights and name not in device.resident]
    if not lacks or _fit(device, wish.components):
        return frozenset(lacks)
    left = device.room_bytes - _nbytes(device, (name for name in wish.components if name in device.resident))
    fitting = _as_fit(device, lacks, left)
    return frozenset(fitting or (() if wish.job == device.last else lacks[:1]))


def after(device: Device, wish: Wish, now: float) -> Device:
    """The device once it has had a step that is with it."""
    loads = absent(device, wish)
    if not loads:
        return device
    left = device.room_bytes - _nbytes(device, loads)
    newest = [*device.resident][::-1]
    others = sorted(newest, key=lambda name: name not in wish.components)
    return replace(device, resident=(*_as_fit(device, others, left)[::-1], *sorted(loads)), began=now)


def fits(device: Device, ready: Ready) -> bool:
    """Whether there is room for all that a step names."""
    return _fit(device, ready.needs)


def loading_s(device: Device, names: Collection[str]) -> float:
    return seconds(device.weights, names)


def seconds(weights: Mapping[str, Weights], names: Collection[str]) -> float:
    """As their last loads took, or as their bytes take at the rate of others there."""
    if not names:
        return 0.0
    known = [one.nbytes / one.load_s for one in weights.values() if one.load_s]
    rate = median(known) if known else LOADED_PER_S
    return sum(one.nbytes / rate if one.load_s is None else one.load_s for one in map(weights.__getitem__, names))


def _fit(device: Device, names: Iterable[str]) -> bool:
    return _nbytes(device, names) <= device.room_bytes


def _nbytes(device: Device, names: Iterable[str]) -> int:
    return sum([device.weights[name].nbytes for name in names if name in device.weights])


def _as_fit(device: Device, names: Iterable[str], left: float) -> list[str]:
    """Those that fit one after the other, in their order."""
    fitting = []
    for name in names:
        if device.weights[name].nbytes <= left:
            left -= device.weights[name].nbytes
            fitting.append(name)
    return fitting


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
