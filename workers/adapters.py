"""The adapters that stay beside a model's modules when no step uses them: those the cache has room for."""

from collections.abc import Callable

from cards import cache_key
from cards.cache_key import CacheKey, Origin
from workers.caches import ADAPTER, STEP, Caches


class Adapters:
    """A `cards.lora.Keeper` of one model. The step that runs holds what it uses."""

    def __init__(self, origin: Origin, caches: Caches) -> None:
        self._origin = origin
        self._caches = caches

    def uses(self, component: str, digest: str) -> bool:
        return self._caches.get(ADAPTER, self._key(component, digest), STEP) is not None

    def keep(self, component: str, digest: str, nbytes: int, forget: Callable[[], None]) -> None:
        self._caches.put(ADAPTER, self._key(component, digest), digest, nbytes, STEP, forget)

    def _key(self, component: str, digest: str) -> CacheKey:
        return cache_key.of_adapter(self._origin, component, digest)
