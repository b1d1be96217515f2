"""One device in virtual time: the engine's own scheduler decides, and steps take what a world says that they take.

What the dispatcher does around the scheduler is repeated here in a few lines: a job has `AHEAD` units with the worker
at most, the second only within one loop; a cancelled job's queued units are dropped, and its running step ends.
"""

import heapq
import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from msgspec import Struct

from engine.dispatch import AHEAD
from engine.scheduling.admission import Room
from engine.scheduling.policy import Policy
from engine.scheduling.ready import Demand, Ready
from engine.scheduling.scheduler import Limits, Scheduler
from ops.bench.falsifier.costs import Step, World, alone_s, identity, steps, together_s
from ops.bench.falsifier.kinds import KINDS, MEMORY_BYTES, WEIGHTS_GB
from ops.bench.falsifier.trace import Arrival, Ask, Trace

DEVICE = "device"
CREDITS = 16
BATCH_MOST = 8

MODELS = tuple(map(identity, WEIGHTS_GB))
FREE_BYTES = MEMORY_BYTES - sum(WEIGHTS_GB.values()) * 1e9


class EagerRoom(Room):
    """Of a worker that is sent whatever there is as soon as it has begun with what it has."""

    @property
    def place_in_s(self) -> float:
        return 0.0 if self.credits > 0 and self.outstanding < 2 else math.inf

    def goes_behind(self, ready: Ready) -> bool:
        return True


class Job(Struct, kw_only=True, eq=False):
    """One request, and what became of it."""

    order: int
    kind: str
    tenant: str
    at: float
    alone_s: float
    """How long it would have taken if nothing else had been there."""
    steps: tuple[Step, ...] = ()
    patience_s: float | None = None
    """None if nobody waits for it."""
    rest: Iterator[Ask] | None = None
    """What its session asks for next."""
    done: int = 0
    out: int = 0
    """Units that are with the device."""
    share: str | None = None
    """That it takes, once it has begun."""
    served_s: float = 0.0
    """Device time that it had."""
    shown_at: float | None = None
    ended_at: float | None = None
    given_up: bool = False

    @property
    def id(self) -> str:
        return f"job-{self.order}"


def asked(arrivals: Iterable[Arrival], world: World) -> Iterator[Arrival]:
    """What a trace has, as it is in a world."""
    films, at = 0, 0.0
    for arrival in arrivals:
        if arrival.kind != "film":
            yield arrival
        elif world.films:
            at = arrival.at if films % world.films_at_once == 0 else at
            films += 1
            yield Arrival(at, arrival.kind)


class Simulation:
    """A trace with the first `sessions` of its sessions, under one policy, in one world."""

    def __init__(self, trace: Trace, sessions: int, policy: Policy, world: World) -> None:
        self.jobs: list[Job] = []
        self.lasts_s = trace.model.lasts_s
        self.busy_s = 0.0
        """Of the device, while requests came."""
        self.now = 0.0
        self._world = world
        self._steps = {kind: steps(kind, world) for kind in KINDS}
        self.scheduler = Scheduler(policy, Limits(batch_most=BATCH_MOST, batch_s=world.batch_s))
        self._alive: dict[str, Job] = {}
        self._begun = Counter[str]()
        self._queue: deque[list[tuple[Job, Step]]] = deque()
        """What the device has been sent; the first runs ..."""
        self._began_at = 0.0
        """... since then."""
        self._due_at = math.inf
        """When the scheduler is asked again in any case."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        for background in trace.background:
            for arrival in asked(background.arrivals, world):
                self._at(arrival.at, partial(self._submit, arrival.kind, background.tenant))
        for session in trace.sessions[:sessions]:
            self._think(iter(session.asks), session.tenant)

    def run(self) -> "Simulation":
        """Until all that was asked for while the trace lasts has ended."""
        while self._events:
            self.now, _, happens = heapq.heappop(self._events)
            happens()
        assert not self._alive, "a job was forgotten"
        assert not self._begun.total(), "a job was counted twice"
        return self

    def _at(self, at: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at, next(self._numbers), happens))

    # -- people -------------------------------------------------------------------------------------------------

    def _think(self, asks: Iterator[Ask], tenant: str) -> None:
        """A session asks for what comes next, in a while."""
        ask = next(asks, None)
        if ask is not None and self.now + ask.think_s < self.lasts_s:
            self._at(self.now + ask.think_s, partial(self._submit, ask.kind, tenant, ask.patience_s, asks))

    def _submit(
        self, kind: str, tenant: str, patience_s: float | None = None, rest: Iterator[Ask] | None = None
    ) -> None:
        job = Job(
            order=len(self.jobs),
            kind=kind,
            tenant=tenant,
            at=self.now,
            alone_s=alone_s(kind, self._world),
            steps=self._steps[kind],
            patience_s=patience_s,
            rest=rest,
        )
        self.jobs.append(job)
        self._alive[job.id] = job
        if patience_s is not None:
            self._at(self.now + patience_s, partial(self._give_up, job))
        self._line_up(job)
        self._dispatch()

    def _give_up(self, job: Job) -> None:
        if job.ended_at is None:
            job.given_up = True
            self.scheduler.discard(job.id)
            for batch in list(self._queue)[1:]:
                kept = [member for member in batch if member[0] is not job]
                for _, step in (member for member in batch if member[0] is job):
                    job.out -= 1
                    self._charge(job, -step.predicted_s)
                batch[:] = kept
            self._queue = deque(filter(None, self._queue))
            self._end(job)
            self._dispatch()

    def _end(self, job: Job) -> None:
        """It is no more of anybody's concern, though its last step may still run."""
        job.ended_at = self.now
        self.scheduler.discard(job.id)
        if job.rest is not None:
            self._think(job.rest, job.tenant)
        if not job.out:
            self._forget(job)

    def _forget(self, job: Job) -> None:
        del self._alive[job.id]
        if job.share is not None:
            self._begun[job.share] -= 1

    # -- the dispatcher -----------------------------------------------------------------------------------------

    def _line_up(self, job: Job) -> None:
        """The step after those that are with the device, if it is sure to follow them."""
        number = job.done + job.out
        if job.ended_at is not None or job.out >= AHEAD or number == len(job.steps):
            return
        step = job.steps[number]
        if job.out and step.node != job.steps[job.done].node:
            return
        ready = Ready(
            job=job.id,
            order=job.order,
            tenant=job.tenant,
            priority=self._world.priorities.get(job.kind, 0),
            submitted_at=job.at,
            since=self.now,
            demand=Demand(step.predicted_s, peak_bytes=step.held_bytes),
            left_s=step.left_s,
            served_s=job.steps[0].left_s - step.left_s,
            group=step.group,
            joins=next((one.group for one in job.steps[number:] if one.group), None) if step.group is None else None,
            model=identity(KINDS[job.kind].model),
            home=None if job.share is None else DEVICE,
            bound=job.out > 0,
        )
        self.scheduler.add(ready, self.now)

    def _dispatch(self) -> None:
        while placements := self.scheduler.plan([self._room()], self.now):
            for placement in placements:
                batch = [self._send(ready) for ready in placement.members]
                self._queue.append(batch)
                if len(self._queue) == 1:
                    self._start()
                for job, _ in batch:
                    self._line_up(job)
        if (due_at := self.scheduler.due_at) is not None and due_at < self._due_at:
            self._due_at = due_at
            self._at(due_at, partial(self._due, due_at))

    def _send(self, ready: Ready) -> tuple[Job, Step]:
        job = self._alive[ready.job]
        step = job.steps[job.done + job.out]
        self._begun[ready.share] += job.share is None
        job.share = ready.share
        job.out += 1
        return job, step

    def _charge(self, job: Job, seconds: float) -> None:
        """Beside what was predicted: that it was charged when its step was placed."""
        self.scheduler.shares.add(job.share or "", seconds, self.now)

    def _due(self, at: float) -> None:
        if at == self._due_at:
            self._due_at = math.inf
            self._dispatch()

    def _room(self) -> Room:
        held = sum([step.held_bytes for batch in self._queue for _, step in batch])
        room = EagerRoom if self._world.eager else Room
        return room(
            worker=DEVICE,
            models=MODELS,
            credits=CREDITS - len(self._queue),
            outstanding=len(self._queue),
            queued_s=self._queued_s(),
            free_bytes=FREE_BYTES - held,
            peak_bytes=held,
            jobs=self._begun.copy(),
        )

    def _queued_s(self) -> float:
        """As the engine can know it: what was predicted, less the time since the first was begun."""
        each = [sum([step.predicted_s for _, step in batch]) for batch in self._queue]
        return max(0.0, each[0] - (self.now - self._began_at)) + sum(each[1:]) if each else 0.0

    # -- the device ---------------------------------------------------------------------------------------------

    def _start(self) -> None:
        batch, self._began_at = self._queue[0], self.now
        _, step = batch[0]
        seconds = together_s(step.seconds, len(batch), step.curve)
        self.busy_s += max(0.0, min(seconds, self.lasts_s - self.now))
        self._at(self.now + seconds, partial(self._finish, seconds))

    def _finish(self, seconds: float) -> None:
        batch = self._queue.popleft()
        for job, step in batch:
            self._fold_in(job, step, seconds / len(batch))
        if self._queue:
            self._start()
        for job, _ in batch:
            self._line_up(job)
        self._dispatch()

    def _fold_in(self, job: Job, step: Step, seconds: float) -> None:
        job.done, job.out, job.served_s = job.done + 1, job.out - 1, job.served_s + seconds
        self._charge(job, seconds - step.predicted_s)
        if job.ended_at is not None:
            self._forget(job)
        elif step.shows and job.shown_at is None:
            job.shown_at = self.now
        if job.ended_at is None and job.done == len(job.steps):
            self._end(job)
