"""Which components are loaded: what steps take, within a budget of bytes, until they are told to sleep.

A component is loaded when a step takes it. To make room, those go that no queued step needs, the one that was used
longest ago first, and then the others. A component that is asleep is one that is not loaded: the next step that takes
it wakes it.
"""

import ctypes
import gc
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from cards import cache_key
from cards.cache_key import CacheKey, Origin, needs
from cards.family import Components
from cards.lazy import Lazy
from cards.wire import Sleep, Wake, Weights, WorkPlan
from workers.caches import ADAPTER, STEP, WEIGHTS, Caches
from workers.clock import perf_counter
from workers.errors import WeightsTooLarge

log = logging.getLogger("keyframe.workers")


def nothing_queued() -> list[WorkPlan]:
    return []


def as_it_is(name: str, module: Any) -> None:
    pass


class Residency:
    """It belongs to the executor; only `resident` and `weights` may be asked by others.

    `loading_s` is what loading has taken since the step began. `queued` are plans that wait here, `finish` is done to
    each component that is loaded.
    """

    def __init__(self, models: Mapping[str, Components], origin: Callable[[str], Origin], caches: Caches) -> None:
        self.queued: Callable[[], list[WorkPlan]] = nothing_queued
        self.finish: Callable[[str, Any], None] = as_it_is
        self.loading_s = 0.0
        self.weights: dict[str, Weights] = {}
        self._models = models
        self._origin = origin
        self._caches = caches
        self._keys: dict[tuple[str, str], CacheKey] = {}
        self._resident: dict[str, None] = {}
        self._taken: set[CacheKey] = set()
        self._freed: list[str] = []
        """What was unloaded and is still said to be there, until its memory is handed back."""
        for model, components in models.items():
            for name, nbytes in components.sizes.items() if isinstance(components, Lazy) else ():
                if nbytes:
                    self.weights[f"{model}/{name}"] = Weights(nbytes)

    def check(self, budget: int | None) -> None:
        """Raises WeightsTooLarge where a component would never stay."""
        name, largest = max(self.weights.items(), key=lambda item: item[1].nbytes, default=("", Weights(0)))
        if budget is not None and largest.nbytes > budget:
            raise WeightsTooLarge(name, largest.nbytes, budget)

    def begin(self) -> None:
        """A step begins: what is loaded and taken from now on is for it."""
        self.loading_s = 0.0
        self._taken.clear()

    def spare(self) -> None:
        """Unload what the last step did not take."""
        self._caches.drop(WEIGHTS, lambda key: key not in self._taken)
        self.settle()

    def components(self, model: str) -> Components:
        """Those of a model, each loaded and held for the step when it is taken."""
        return Present(self, model, self._models[model])

    def spent(self, seconds: float) -> None:
        """This was no part of the step that runs."""
        self.loading_s += seconds

    def resident(self) -> tuple[str, ...]:
        return tuple(self._resident.copy())

    def take(self, model: str, name: str) -> Any:
        if f"{model}/{name}" not in self.weights:
            return self._models[model][name]
        key = self._key(model, name)
        self._taken.add(key)
        module = self._caches.get(WEIGHTS, key, STEP)
        return self._load(model, name, key) if module is None else module

    def obey(self, message: Sleep | Wake) -> None:
        """Between two steps."""
        there = [name for name in message.names if name in self.weights]
        if isinstance(message, Sleep):
            self._sleep(there)
        else:
            self._wake(there)
        self.settle()

    def settle(self) -> None:
        """Hand the memory of what was unloaded back to the system."""
        if self._freed:
            give_back()
            for name in self._freed:
                self._resident.pop(name, None)
            self._freed.clear()

    def _sleep(self, names: Iterable[str]) -> None:
        keys = {self._key(*_parted(name)) for name in names}
        self._caches.drop(WEIGHTS, lambda key: key in keys)

    def _wake(self, names: Iterable[str]) -> None:
        """All of them together: others may go for them, and none of them for another."""
        room = self._caches.budget(WEIGHTS)
        for name in names:
            if room is not None and (room := room - self.weights[name].nbytes) < 0:
                log.warning("there is no room to wake %s", name)
                break
            try:
                self.take(*_parted(name))
            except Exception:  # it is others' code that loads: a step which needs the component answers with the error
                log.exception("could not wake %s", name)
        self._caches.release(STEP)

    def _load(self, model: str, name: str, key: CacheKey) -> Any:
        full, nbytes = f"{model}/{name}", self.weights[f"{model}/{name}"].nbytes
        self._caches.make_room(WEIGHTS, nbytes, last=self._needed().__contains__)
        self.settle()
        began = perf_counter()
        module = self._models[model][name]
        self.finish(full, module)
        seconds = perf_counter() - began
        self.spent(seconds)
        self.weights[full] = Weights(nbytes, seconds)
        self._resident[full] = None
        self._caches.put(WEIGHTS, key, module, nbytes, STEP, partial(self._unload, model, name))
        return module

    def _unload(self, model: str, name: str) -> None:
        """And the adapters beside it."""
        self._caches.drop(ADAPTER, lambda key: key.derives_from(model, name))
        components = self._models[model]
        assert isinstance(components, Lazy)
        components.unload(name)
        self._freed.append(f"{model}/{name}")
        log.info("unloaded %s/%s", model, name)

    def _needed(self) -> set[CacheKey]:
        """By what is queued."""
        plans = [plan for plan in self.queued() if plan.instance in self._models]
        names = {name for plan in plans for name in needs(self._origin(plan.instance).card, plan)}
        return {self._key(*_parted(name)) for name in names & self.weights.keys()}

    def _key(self, model: str, name: str) -> CacheKey:
        if (model, name) not in self._keys:
            self._keys[model, name] = cache_key.of_weights(self._origin(model), name)
        return self._keys[model, name]


class Present(Mapping[str, Any]):
    """A model's components as its steps take them."""

    def __init__(self, residency: Residency, model: str, components: Components) -> None:
        self._residency = residency
        self._model = model
        self._components = components

    def __getitem__(self, name: str) -> Any:
        return self._residency.take(self._model, name)

    def __contains__(self, name: object) -> bool:
        return name in self._components.keys()  # noqa: SIM118 - which loads nothing

    def __iter__(self) -> Iterator[str]:
        return iter(self._components)

    def __len__(self) -> int:
        return len(self._components)


def give_back() -> None:
    """Hand what is free to the system: modules are full of cycles, and the C library keeps what it was given back."""
    gc.collect()
    if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


def _parted(name: str) -> tuple[str, str]:
    model, _, component = name.rpartition("/")
    return model, component
