"""A family whose steps leave 8 MB behind and the processor free: as much as a clip's latent, made on a device.

The prompt is the step's length in seconds.
"""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cards.family import Components, Made, StepBody
from cards.loop import Loop
from cards.wire import WorkPlan
from ops.bench.noop import Count, Noop, card

if TYPE_CHECKING:
    import torch

SEMANTICS = "heavy.count/1"
MEGABYTES = 8

LOOPS: Mapping[str, Loop] = {SEMANTICS: Count("heavy", SEMANTICS)}


def count(components: Components, plan: WorkPlan, reads: "Mapping[str, torch.Tensor]") -> Made:
    import torch

    time.sleep(float(plan.scalars["step_s"]))
    return Made({"x": torch.full((MEGABYTES << 18,), float(plan.step))})


class Heavy(Noop):
    card = card("heavy", SEMANTICS)
    loops = LOOPS

    def bodies(self) -> Mapping[str, StepBody]:
        return {"count": count}


FAMILY = Heavy()
