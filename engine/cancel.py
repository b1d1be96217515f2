"""Cancelling: one append if nothing of a job runs, else a request now and the end once its worker has let go."""

import asyncio
from enum import StrEnum

from cards.wire import Released
from engine import verbs
from engine.clock import Clock
from engine.dispatch import Dispatcher
from engine.events import JobCancelled
from engine.job import State
from engine.ledger import Ledger


class Outcome(StrEnum):
    """What came of asking to cancel a job."""

    CANCELLED = "cancelled"
    CANCELLING = "cancelling"
    ALREADY_TERMINAL = "already_terminal"


class Canceller:
    def __init__(self, ledger: Ledger, dispatcher: Dispatcher, clock: Clock) -> None:
        self._ledger = ledger
        self._dispatcher = dispatcher
        self._clock = clock
        self._since: dict[str, float] = {}

    async def cancel(self, job_id: str, reason: str = "") -> Outcome:
        """Raises JobNotFound, Overtaken, StoreTrouble, HistoryError. What it returns is durable."""
        actor = await self._ledger.find(job_id)
        asked = not actor.job.terminal and actor.job.state is not State.CANCELLING
        if asked or not self._ledger.drives(actor):  # a cancel that nobody is at any more ends now
            events = verbs.cancel(actor.job, reason, running=bool(actor.out))
            if not events:
                return Outcome.ALREADY_TERMINAL
            asked = True
            self._since[job_id] = self._clock.monotonic()
            self._dispatcher.stand_down(actor)
            self._ledger.write(actor, events)
            await self._dispatcher.release(actor)
        job = await asyncio.shield(actor.told)
        if not job.terminal:
            return Outcome.CANCELLING
        return Outcome.CANCELLED if asked and job.state is State.CANCELLED else Outcome.ALREADY_TERMINAL

    def released(self, worker: str, message: Released) -> None:
        """A worker has let go of a job: if that was what its cancel waited for, it has happened."""
        actor = self._ledger.actors.get(message.job)
        if actor is None or actor.job.state is not State.CANCELLING:
            return
        if actor.home == worker and actor.epoch == message.epoch:
            actor.leave()
            self._ledger.write(actor, [JobCancelled()])

    def overdue(self, grace_s: float) -> list[str]:
        """The workers whose running step has held up a cancel for longer than this."""
        since = self._clock.monotonic() - grace_s
        actors = {job: self._ledger.actors.get(job) for job in self._since}
        waiting = {job: actor for job, actor in actors.items() if actor and actor.job.state is State.CANCELLING}
        self._since = {job: self._since[job] for job in waiting}
        return [actor.home for job, actor in waiting.items() if actor.home and self._since[job] < since]
