"""The shipped trace against real engines: the shapes model on this machine, time `SCALE` times as fast.

A kind is a number of steps of shapes, and a film several jobs, for one has a hundred steps at most. To render takes as
long as 25 steps, whatever it is of, so thumbnails come one at a time. What each takes alone is measured first. Nothing
of the engine is replaced, but the seconds that its policies go by are scaled as well.
"""

import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct

from cards.request import GenerationRequest
from engine.client import Client
from engine.events import JobCompleted, StepCompleted
from engine.scheduling import policy
from ops.bench.falsifier.costs import SLO_S
from ops.bench.falsifier.outcomes import Outcome, outcome
from ops.bench.falsifier.simulation import Job
from ops.bench.falsifier.trace import Arrival, Session, Trace, read
from ops.bench.measure import machine
from ops.serve import Serving, running
from ops.settings import Settings

FILE = Path("docs/scheduling/real.json")

SCALE = 4.0

STEPS: Mapping[str, int] = {"picture": 1, "thumbnail": 1, "draft": 20, "clip": 50, "sound": 30, "film": 100}
JOBS: Mapping[str, float] = {"film": 4, "thumbnail": 1 / 8}
"""For one that the trace has."""

SHORT_S = 3.0
"""Films take longer, everything else takes less."""

ALONE = 3
"""How often each kind is run by itself."""


class Replay:
    """The jobs of one policy. Their times are the trace's: those of this machine times `SCALE`."""

    def __init__(self, client: Client, alone_s: Mapping[str, float]) -> None:
        self.jobs: list[Job] = []
        self._client = client
        self._alone_s = alone_s
        self._began = perf_counter()

    async def run(self, trace: Trace, sessions: int, seconds: float) -> Outcome:
        """For so many seconds of this machine, and until what is then under way has ended."""
        self._began = perf_counter()
        async with anyio.create_task_group() as tasks:
            for session in trace.sessions[:sessions]:
                tasks.start_soon(self._session, session, seconds)
            for background in trace.background:
                for number, arrival in enumerate(background.arrivals):
                    jobs = JOBS.get(arrival.kind, 1)
                    if arrival.at / SCALE < seconds and (jobs >= 1 or number % round(1 / jobs) == 0):
                        tasks.start_soon(self._arrival, tasks, arrival, background.tenant, max(1, round(jobs)))
        busy_s = sum(job.served_s for job in self.jobs) / SCALE
        return outcome(self.jobs, busy_s / (perf_counter() - self._began))

    async def _session(self, session: Session, seconds: float) -> None:
        for ask in session.asks:
            await anyio.sleep(ask.think_s / SCALE)
            if perf_counter() - self._began > seconds:
                return
            await self.ask(ask.kind, session.tenant, ask.patience_s)

    async def _arrival(self, tasks: TaskGroup, arrival: Arrival, tenant: str, jobs: int) -> None:
        await anyio.sleep(arrival.at / SCALE)
        for _ in range(jobs):
            tasks.start_soon(self.ask, arrival.kind, tenant)

    async def ask(self, kind: str, tenant: str, patience_s: float | None = None) -> Job:
        """Submit a job and wait for its end, or cancel it when patience is at an end."""
        job = Job(
            order=len(self.jobs),
            kind=kind,
            tenant=tenant,
            at=self._now(),
            alone_s=self._alone_s.get(kind, 0.0),
            patience_s=patience_s,
        )
        self.jobs.append(job)
        request = GenerationRequest(
            model="shapes", prompt="a red circle moving right", seed=job.order, steps=STEPS[kind], tenant=tenant
        )
        submitted = await self._client.submit(request)
        with anyio.move_on_after(None if patience_s is None else patience_s / SCALE) as patience:
            await self._follow(job, submitted.id)
        if patience.cancelled_caught:
            job.given_up, job.ended_at = True, self._now()
            await self._client.cancel(submitted.id)
        return job

    async def _follow(self, job: Job, job_id: str) -> None:
        async for page in self._client.watch(job_id):
            for told in page:
                match told.event:
                    case StepCompleted():
                        job.served_s += told.event.seconds * SCALE
                        if told.event.node == "decode" and job.shown_at is None:
                            job.shown_at = self._now()
                    case JobCompleted():
                        job.ended_at = self._now()
        assert job.ended_at is not None, f"{job_id} did not end well"

    def _now(self) -> float:
        return (perf_counter() - self._began) * SCALE


class Measured(Struct, frozen=True, kw_only=True):
    machine: str
    seconds: float
    """Of each policy."""
    sessions: int
    alone_s: dict[str, float]
    """Of this machine, by kind."""
    outcomes: dict[str, Outcome]
    """By policy. Their times are the trace's."""


def run(seconds: float, sessions: int, policies: Sequence[str], advance: Callable[[], None]) -> Measured:
    """`advance` is called after each policy."""
    return anyio.run(_run, seconds, sessions, policies, advance, backend_options={"use_uvloop": True})


async def _run(seconds: float, sessions: int, policies: Sequence[str], advance: Callable[[], None]) -> Measured:
    policy.SHORT_S, policy.GRACE_S = SHORT_S, SLO_S / SCALE
    alone_s: dict[str, float] = {}
    found: dict[str, Outcome] = {}
    for name in policies:
        async with _engine(name) as serving:
            await Replay(serving.client, {}).ask("clip", "")  # warms the worker up
            alone_s = alone_s or await _alone(serving.client)
            found[name] = await Replay(serving.client, alone_s).run(read(), sessions, seconds)
        advance()
    here_s = {kind: round(each / SCALE, 2) for kind, each in alone_s.items()}
    return Measured(machine=machine(), seconds=seconds, sessions=sessions, alone_s=here_s, outcomes=found)


async def _alone(client: Client) -> dict[str, float]:
    """What each kind takes by itself: the median."""
    replay = Replay(client, {})
    found: dict[str, float] = {}
    for kind in STEPS:
        if kind != "thumbnail":
            jobs = [await replay.ask(kind, "") for _ in range(1 if kind == "film" else ALONE)]
            found[kind] = sorted((job.ended_at or 0.0) - job.at for job in jobs)[len(jobs) // 2]
    return found | {"thumbnail": found["picture"]}


@asynccontextmanager
async def _engine(name: str) -> AsyncIterator[Serving]:
    with tempfile.TemporaryDirectory(prefix="falsifier-") as folder:
        settings = Settings(
            data=Path(folder), port=0, workers=1, threads=1, families=("cards.shapes.family",), policy=name,
            log_level="error",
        )  # fmt: skip
        async with running(settings) as serving:
            while not serving.client.readiness().ready:
                await anyio.sleep(0.01)
            yield serving
