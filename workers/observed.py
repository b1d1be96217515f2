"""An executor whose steps are looked at. One without observers is the plain executor: nothing of this is in its way.

Where an observer looks into modules, steps are executed one after the other: in a call that they share, nobody could
say whose is what. Others see each step of a batch as they see one alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from cards.cache_key import CacheKey
from cards.extensions.observer import Observer, Seen
from cards.extensions.observers import open_observers
from cards.family import Asking, Components, Made
from cards.wire import WorkPlan
from workers.batches import Arrived
from workers.caches import Caches
from workers.execute import Answer, Executor, asking
from workers.loaded import Loaded
from workers.resident import BlobStore

if TYPE_CHECKING:
    import torch


def executor(
    models: Mapping[str, Loaded],
    blobs: BlobStore,
    extensions: Sequence[str] = (),
    *,
    stores: bool = True,
    device: str = "cpu",
    caches: Caches | None = None,
) -> Executor:
    """With the observers that the settings name. Raises BadExtension."""
    if not extensions:
        return Executor(models, blobs, stores=stores, device=device, caches=caches)
    return ObservedExecutor(models, blobs, open_observers(extensions), stores=stores, device=device, caches=caches)


class ObservedExecutor(Executor):
    def __init__(
        self,
        models: Mapping[str, Loaded],
        blobs: BlobStore,
        observers: Sequence[Observer],
        *,
        stores: bool = True,
        device: str = "cpu",
        caches: Caches | None = None,
    ) -> None:
        super().__init__(models, blobs, stores=stores, device=device, caches=caches)
        self._observers = observers
        self._apart = any(observer.looks_inside for observer in observers)
        self._observed: dict[str, dict[str, float]] = {}
        """By job: of units that are executed together each is of another."""

    def _goes_together(self, plan: WorkPlan) -> bool:
        return not self._apart and super()._goes_together(plan)

    def _execute(self, units: Sequence[Arrived], *, in_pieces: bool = False) -> list[Answer]:
        self._observed = {unit.id.job: {} for unit, _ in units}
        return [
            replace(answer, result=replace(answer.result, observed=self._observed[answer.result.id.job]))
            for answer in super()._execute(units, in_pieces=in_pieces)
        ]

    def _body(self, job: str, plan: WorkPlan, tensors: "Mapping[str, torch.Tensor]") -> Asking:
        model, seen = self._models[plan.instance], Seen(job, plan, tensors)
        made: list[Made] = []
        with ExitStack() as stack:
            for observer in self._observers:
                observer.before_step(seen)
                stack.callback(self._after, observer, seen, made)
            watched = Watched(self._components(plan), partial(self._component, seen))
            made.append((yield from asking(model.bodies[plan.kind](watched, plan, tensors))))
        return made[0]

    def _feature(self, job: str, plan: WorkPlan) -> CacheKey | None:
        """What is looked at is computed."""
        return None

    def _component(self, seen: Seen, name: str, component: Any) -> None:
        for observer in self._observers:
            observer.component(seen, name, component)

    def _after(self, observer: Observer, seen: Seen, made: list[Made]) -> None:
        self._observed[seen.job].update(observer.after_step(seen, made[0] if made else None))


class Watched(Mapping[str, Any]):
    """The components of one step; says of each when it is first taken."""

    def __init__(self, components: Components, told: "partial[None]") -> None:
        self._components = components
        self._told = told
        self._taken: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        component = self._components[name]
        if name not in self._taken:
            self._taken.add(name)
            self._told(name, component)
        return component

    def __iter__(self) -> Iterator[str]:
        return iter(self._components)

    def __len__(self) -> int:
        return len(self._components)
