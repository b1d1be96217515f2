"""What a worker keeps because it may be of use again, in classes, each within a budget of bytes.

An entry is held by those who use it: a job, or the step that runs. What nobody holds stays as long as its class has
room for it, and what was used longest ago goes first. What is held is never taken away, so a class whose budget is
nothing keeps exactly what is held.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from msgspec import Struct, field

from cards.cache_key import CacheKey
from cards.wire import CacheUse

FEATURE, ADAPTER, SLAB_KV, WEIGHTS = "feature", "adapter", "slab_kv", "weights"

BUDGETS: Mapping[str, int | None] = {
    FEATURE: 256 << 20,  # embeddings of texts and pictures
    ADAPTER: 1 << 30,  # LoRAs beside their modules
    SLAB_KV: 0,  # keys and values of a rollout: nobody else's
    WEIGHTS: None,
}
"""The classes. None is all there is."""

STEP = ""
"""Holds what the step that runs uses; no job has this name."""


def nothing() -> None:
    pass


class Kept(Struct):
    """`dropped` is called once the entry is gone."""

    value: Any
    nbytes: int
    dropped: Callable[[], None]
    holders: set[str] = field(default_factory=set)


class CacheClass:
    """Entries of one class, the one used last at the end."""

    def __init__(self, budget: int | None) -> None:
        self.entries: dict[CacheKey, Kept] = {}
        self.use = CacheUse()
        self.budget = budget

    def find(self, key: CacheKey) -> Kept | None:
        """It becomes the one used last."""
        if (kept := self.entries.pop(key, None)) is not None:
            self.entries[key] = kept
        return kept

    def add(self, key: CacheKey, kept: Kept) -> None:
        self.entries[key] = kept
        self.use.nbytes += kept.nbytes
        self.use.entries += 1

    def drop(self, key: CacheKey) -> None:
        kept = self.entries.pop(key)
        self.use.nbytes -= kept.nbytes
        self.use.entries -= 1
        kept.value = None  # whoever is told may count on it that nobody here refers to it
        kept.dropped()

    def shrink(self, room: int = 0, last: Callable[[CacheKey], bool] = lambda key: False) -> None:
        """Drop what nobody holds until `room` bytes more fit: first what is not to go `last`."""
        if self._fits(room):
            return
        free = [key for key, kept in self.entries.items() if not kept.holders]
        for key in sorted(free, key=last):  # which keeps the order of use
            self.drop(key)
            self.use.evicted += 1
            if self._fits(room):
                return

    def _fits(self, room: int) -> bool:
        return self.budget is None or self.use.nbytes + room <= self.budget


class Caches:
    """All classes. They belong to the executor; only `uses` may be asked by others."""

    def __init__(self, budgets: Mapping[str, int | None] = BUDGETS) -> None:
        self._classes = {name: CacheClass(budget) for name, budget in budgets.items()}
        self._held: dict[str, set[tuple[str, CacheKey]]] = {}

    def get(self, name: str, key: CacheKey, holder: str) -> Any | None:
        """What was put there, held from now on; None if it is not there."""
        cache = self._classes[name]
        kept = cache.find(key)
        if kept is None:
            cache.use.misses += 1
            return None
        cache.use.hits += 1
        self._hold(name, key, kept, holder)
        return kept.value

    def put(
        self, name: str, key: CacheKey, value: Any, nbytes: int, holder: str, dropped: Callable[[], None] = nothing
    ) -> None:
        """Keep it, held. What is there under this key already is the same, and stays."""
        cache = self._classes[name]
        kept = cache.find(key)
        if kept is None:
            kept = Kept(value, nbytes, dropped)
            cache.add(key, kept)
        self._hold(name, key, kept, holder)
        cache.shrink()

    def budget(self, name: str) -> int | None:
        return self._classes[name].budget

    def make_room(self, name: str, nbytes: int, last: Callable[[CacheKey], bool]) -> None:
        """Before so many bytes are put there, as far as what is held allows."""
        self._classes[name].shrink(nbytes, last)

    def let_go(self, name: str, key: CacheKey, holder: str) -> None:
        """The holder has no more use for this one."""
        self._held.get(holder, set()).discard((name, key))
        cache = self._classes[name]
        if key in cache.entries:
            cache.entries[key].holders.discard(holder)
            cache.shrink()

    def release(self, holder: str) -> None:
        """The holder has no more use for anything."""
        held = self._held.pop(holder, set())
        for name, key in held:
            self._classes[name].entries[key].holders.discard(holder)
        for name in {name for name, _ in held}:
            self._classes[name].shrink()

    def drop(self, name: str, gone: Callable[[CacheKey], bool]) -> None:
        """Those entries, whoever holds them."""
        cache = self._classes[name]
        for key in [key for key in cache.entries if gone(key)]:
            for holder in cache.entries[key].holders:
                self._held[holder].discard((name, key))
            cache.drop(key)

    def give_up(self, but: Collection[str] = ()) -> None:
        """What nobody holds goes, whatever room there is, but for the classes named."""
        for name in self._classes.keys() - but:
            free = {key for key, kept in self._classes[name].entries.items() if not kept.holders}
            self.drop(name, free.__contains__)

    def clear(self, but: Collection[str] = ()) -> None:
        """Nobody holds anything any more, and only the classes named keep what they have room for."""
        for holder in list(self._held):
            self.release(holder)
        for name in self._classes.keys() - but:
            self.drop(name, lambda key: True)

    def _hold(self, name: str, key: CacheKey, kept: Kept, holder: str) -> None:
        kept.holders.add(holder)
        self._held.setdefault(holder, set()).add((name, key))

    def uses(self) -> dict[str, CacheUse]:
        """By class."""
        return {name: cache.use for name, cache in self._classes.items()}
