"""Models on this device: their modules, and what may be done with them."""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from cards.branches import COMPONENT, Branches
from cards.family import Components, Family, StepBody
from cards.parallel import ULYSSES, ParallelPlan, shares
from cards.registry import Families
from cards.ulysses import Dealing, Ranks


class Loaded(Struct, frozen=True):
    """A model on this device: its modules, what may be done with them, and what its bodies are given beside them.

    Without a family nothing is known of what its steps are made of, and nothing that they make is used again.
    """

    components: Components
    bodies: Mapping[str, StepBody]
    beside: Mapping[str, Any] = {}
    family: Family | None = None


class Beside(Mapping[str, Any]):
    """A model's modules, and under their names what its bodies are given besides."""

    def __init__(self, components: Components, more: Mapping[str, Any]) -> None:
        self._components = components
        self._more = more

    def __getitem__(self, name: str) -> Any:
        return self._more[name] if name in self._more else self._components[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*self._components, *self._more))

    def __len__(self) -> int:
        return len(self._components) + len(self._more)


def load_models(
    registry: Families,
    device: str = "cpu",
    plan: ParallelPlan | None = None,
    branches: Branches | None = None,
    ranks: Ranks | None = None,
) -> dict[str, Loaded]:
    """Of those that ranks share by the plan `branches` evaluates those of a step, and `ranks` share their forwards."""

    def beside(family: Family) -> Mapping[str, Any]:
        return {COMPONENT: branches} if branches is not None and plan is not None and shares(plan, family) else {}

    return {
        name: Loaded(_modules(family, device, ranks), family.bodies(), beside(family), family)
        for name, family in registry.items()
    }


def _modules(family: Family, device: str, ranks: Ranks | None) -> Components:
    if ranks is not None and isinstance(family, Dealing) and not family.unshared(ULYSSES, ranks.degree):
        return family.load_dealt(device, ranks)
    return family.load(device)
