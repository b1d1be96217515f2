"""Under what a worker's caches keep what the steps of its models make."""

from collections.abc import Mapping

from cards import cache_key
from cards.cache_key import CacheKey, Origin
from cards.wire import TensorRef, WorkPlan
from workers.loaded import Loaded


class Keys:
    """Of models whose family is known; what others make is no other's. Plans read tensors, and no promises."""

    def __init__(self, models: Mapping[str, Loaded]) -> None:
        self._models = models
        self._origins: dict[str, Origin] = {}

    def origin(self, instance: str) -> Origin:
        found = self._origins.get(instance)
        if found is None:
            model = self._models[instance]
            assert model.family is not None, "only what a family has loaded is kept"
            found = cache_key.origin(model.family, parallel=" ".join(sorted(model.beside)))
            self._origins[instance] = found
        return found

    def feature(self, plan: WorkPlan) -> CacheKey | None:
        return cache_key.of_feature(self.origin(plan.instance), plan) if plan.feature and self._knows(plan) else None

    def slabs(self, plan: WorkPlan, made: Mapping[str, TensorRef]) -> dict[str, CacheKey]:
        """By digest, of what was made and the plan calls slabs."""
        refs = {name: made[name] for name in plan.slabs if name in made}
        if not refs or not self._knows(plan):
            return {}
        return {
            ref.digest: cache_key.of_slab(self.origin(plan.instance), plan, name, ref) for name, ref in refs.items()
        }

    def _knows(self, plan: WorkPlan) -> bool:
        return self._models[plan.instance].family is not None
