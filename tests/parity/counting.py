"""A family whose steps are counted: the products, convolutions and attention that torch really runs."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop

from cards.branches import alone
from cards.family import Components, Family, Made, StepBody
from cards.folding import FOLD
from cards.wire import WorkPlan

Flops = Counter[tuple[str, str]]
"""By loop and kind of step."""


class CountedFamily:
    """The same family, but that its bodies add to `flops` what they take."""

    def __init__(self, family: Family, flops: Flops) -> None:
        self._family = family
        self._flops = flops

    def __getattr__(self, name: str) -> Any:
        return getattr(self._family, name)

    def load(self, device: str) -> Components:
        """All of it at once: what a module computes while it is made is no step's."""
        components = self._family.load(device)
        for name in components:
            components[name]
        return components

    def bodies(self) -> Mapping[str, StepBody]:
        return {kind: self._counted(body) for kind, body in self._family.bodies().items()}

    def _counted(self, body: StepBody) -> StepBody:
        def counted(components: Components, plan: WorkPlan, reads: Mapping[str, Tensor]) -> Made:
            with counter() as mode:
                made = alone(components, body(components, plan, reads))
            self._flops[plan.loop, plan.kind.removesuffix(FOLD)] += mode.get_total_flops()
            return made

        return counted


def counter() -> FlopCounterMode:
    """torch's own, which does not know the CPU's attention yet."""
    aten = torch.ops.aten
    return FlopCounterMode(display=False, custom_mapping={aten._scaled_dot_product_flash_attention_for_cpu: _attention})


def _attention(query: Any, key: Any, value: Any, *rest: Any, out_shape: Any = None, **named: Any) -> int:
    flops: int = sdpa_flop(query, key, value)
    return flops
