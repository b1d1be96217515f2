"""The shapes family, with steps that kill their process, or everything with it, as often as a file says.

KILLS names the file; each of its lines is a step's kind and number. A step that finds its line takes it out and sends
SIGKILL: to its process, or with TREE=1 to the whole process group, engine included.
"""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cards.branches import alone
from cards.family import Components, Made, StepBody
from cards.shapes.family import Shapes
from cards.wire import WorkPlan


class KillingShapes(Shapes):
    def bodies(self) -> Mapping[str, StepBody]:
        return {kind: _deadly(body) for kind, body in super().bodies().items()}


def _deadly(body: StepBody) -> StepBody:
    def run(components: Components, plan: WorkPlan, reads: Mapping[str, Any]) -> Made:
        _die_if_told(f"{plan.kind} {plan.step}")
        return alone(components, body(components, plan, reads))

    return run


def _die_if_told(step: str) -> None:
    file = Path(os.environ["KILLS"])
    lines = file.read_text().splitlines()
    if step in lines:
        lines.remove(step)
        file.write_text("\n".join(lines))
        group = os.environ.get("TREE") == "1"
        os.kill(-os.getpgid(0) if group else os.getpid(), signal.SIGKILL)


FAMILY = KillingShapes()
