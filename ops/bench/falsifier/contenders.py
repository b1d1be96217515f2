"""What is compared: the engine's policies, and five that tell what in them it is that helps."""

from collections.abc import Mapping

from engine.scheduling.policy import DEADLINE, POLICIES, Key, Outlook, Policy, Ruled, due, length
from engine.scheduling.ready import Ready


def _short_first(ready: Ready, outlook: Outlook) -> Key:
    return (float(length(ready) == "long"), ready.submitted_at)


def _as_due(ready: Ready, outlook: Outlook) -> Key:
    return (due(ready),)


def _as_can_be(ready: Ready, outlook: Outlook) -> Key:
    return (max(due(ready), outlook.now + ready.left_s),)


def _least_slack(ready: Ready, outlook: Outlook) -> Key:
    return (due(ready) - outlook.now - ready.left_s,)


REQUEST_DEADLINE = Ruled(name="request_deadline", rule=DEADLINE.rule, shared_by=lambda ready: "", at_once=1)
"""By deadline, and yet one job at a time: what order alone is worth."""

SHORT_FIRST = Ruled(name="short_first", rule=_short_first, shared_by=length, at_once=1)
"""The pools of run_to_completion, the long one only while the short one is idle: what it is worth that steps of films
give way, and nothing else does."""

LATE_FIRST = Ruled(name="late_first", rule=_as_due, settled=True)
"""By deadline, and what is late keeps its place before all that is not."""

LATE_SOON = Ruled(name="late_soon", rule=_as_can_be)
"""By deadline, and what is late is due when it can be done."""

LEAST_SLACK = Ruled(name="least_slack", rule=_least_slack)
"""By deadline less what is left to do."""

CONTENDERS: Mapping[str, Policy] = {
    policy.name: policy
    for policy in (
        POLICIES["fifo"],
        REQUEST_DEADLINE,
        POLICIES["run_to_completion"],
        SHORT_FIRST,
        POLICIES["round_robin"],
        POLICIES["batch_first"],
        POLICIES["fair"],
        LEAST_SLACK,
        LATE_FIRST,
        LATE_SOON,
        POLICIES["deadline"],
    )
}
