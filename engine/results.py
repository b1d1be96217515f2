"""What a worker has made, or failed to make, becomes what the log says: the one way from a result to events."""

import logging
from collections.abc import Mapping

from cards.card import Node
from cards.registry import Registry
from cards.wire import StepResult, WorkPlan
from engine import driver, verbs
from engine.actor import JobActor
from engine.errors import LoopFailed
from engine.job import Job
from engine.ledger import Ledger
from engine.needs import grown

log = logging.getLogger("keyframe.engine")


class Results:
    def __init__(self, registry: Registry, ledger: Ledger) -> None:
        self.steps = 0
        """That were folded in."""
        self._registry = registry
        self._ledger = ledger

    def fold_in(
        self, actor: JobActor, worker: str, plan: WorkPlan, result: StepResult, arrived: Mapping[str, bytes]
    ) -> None:
        """The step that the job waited for is back, with the bytes that `arrived` with it."""
        if result.error is not None:
            if result.error.kind == "store_trouble":
                self._wait_for_store(actor, result.error.message)
            else:
                self.fail(actor, result.error.kind, result.error.message)
            return
        assert actor.state is not None
        assert actor.plan is not None, "a step that came back was sent"
        done = driver.completed(self.node(actor.job), plan, result, worker)
        try:
            turn = driver.fold_in(actor.job, self._registry[actor.job.model.name], actor.state, done)
        except LoopFailed as error:
            self.fail(actor, "error", str(error))
            return
        if actor.out and not driver.as_promised(actor.out[0].plan, turn.plan):
            self.fail(actor, "error", f"loop {plan.loop} promised another step than the one after step {plan.step}")
            return
        self.steps += 1
        actor.refolds = grown(actor.refolds, actor.plan, done)
        actor.state, actor.plan = turn.state, turn.plan
        actor.held = actor.held.union(ref.digest for ref in result.tensors.values())
        self._ledger.write(actor, [done, *turn.events], inline=dict(arrived))
        actor.keep_inline(dict(arrived))

    def fail(self, actor: JobActor, kind: str, message: str) -> None:
        """The job cannot go on."""
        self._ledger.write(actor, verbs.fail(actor.job, self.node(actor.job), kind, message))

    def lose(self, actor: JobActor, worker: str, reason: str, *, blamed: bool, max_deaths: int) -> None:
        """The worker is gone that had a unit of the job."""
        node = self.node(actor.job)
        events = verbs.lose_worker(actor.job, node, worker, reason, blamed=blamed, max_deaths=max_deaths)
        self._ledger.write(actor, events)

    def node(self, job: Job) -> Node:
        return driver.node_of(job, self._registry[job.model.name])

    def _wait_for_store(self, actor: JobActor, message: str) -> None:
        """The step itself is sound: it is sent again, with all that it reads, once what follows it is back."""
        self._ledger.trouble = message
        actor.waits, actor.lined_up = True, False
        actor.held = frozenset()
        log.warning("a step waits for the store: %s", message, extra={"job": actor.job.id})
