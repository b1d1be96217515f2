"""What there are workers for here: models, and the loops that jobs are in."""

from collections.abc import Mapping

from cards.registry import Registry
from cards.roles import role_of, roles_of
from cards.wire import ModelIdentity
from engine import driver, share
from engine.fleet import Fleet
from engine.job import Job


class Served:
    def __init__(self, registry: Registry, identities: Mapping[str, ModelIdentity], fleet: Fleet) -> None:
        self._registry = registry
        self._identities = identities
        self._fleet = fleet

    def offers(self) -> list[str]:
        """The models, as the engine's lease says them."""
        return share.offers(model for model in self._identities.values() if self.whole(model))

    def whole(self, model: ModelIdentity) -> bool:
        """Whether there are workers for all loops of a model."""
        roles = roles_of(self._registry[model.name].card)
        return all(self._fleet.serving(model, role=role) for role in roles or (None,))

    def next_of(self, job: Job) -> bool:
        """Whether there is a worker for the loop that a job is in."""
        return bool(self._fleet.serving(job.model, job.pool, self.role(job)))

    def role(self, job: Job) -> str | None:
        """Whose the loop is that a job is in."""
        if job.terminal:
            return None
        family = self._registry[job.model.name]
        return role_of(family.card, driver.node_of(job, family).loop)
