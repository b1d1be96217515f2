"""G7: durable no-op steps through a real worker process, one job and sixteen, beside DBOS in the same run."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from statistics import median

from engine.client import Client
from ops.bench.measure import NOOP, engine, figure
from ops.bench.steps import rate
from ops.bench.store.goals import Outcome, at_least
from ops.bench.store.options import Options
from ops.bench.store.peer import Peer, peer
from ops.bench.store.runs import by_turns

JOBS = (1, 16)
OF_DBOS = {1: 3, 16: 12}
A_SECOND = {1: 1500, 16: 5500}
STEPS = {1: 1000, 16: 300}
"""Of each job."""

Rate = Callable[[], Awaitable[float]]


async def run(options: Options) -> Outcome:
    outcome = Outcome([], [])
    for database in options.databases:
        seen = await _measure(options, database)
        outcome.figures += [figure(f"{database}: {name}", rates, "/s", 0) for name, rates in seen.items()]
        for jobs in JOBS:
            ours, theirs = seen[f"our steps, {jobs} jobs"], seen.get(f"dbos steps, {jobs} workflows")
            ratio = median(a / b for a, b in zip(ours, theirs, strict=True)) if theirs else None
            what = f"steps on {database}, {jobs} at once"
            outcome.goals.append(at_least("G7", f"{what}, of DBOS", ratio, OF_DBOS[jobs]))
            outcome.goals.append(at_least("G7", what, median(ours), A_SECOND[jobs], "/s"))
    return outcome


async def _measure(options: Options, database: str) -> dict[str, list[float]]:
    contenders: dict[str, Rate] = {}
    async with AsyncExitStack() as stack:
        data = options.data / f"engine-{database}"
        serving = await stack.enter_async_context(engine(data, NOOP, store=options.new_store(database)))
        dbos = stack.enter_context(peer("dbos_steps", options.new_store(database))) if options.peers else None
        for jobs in JOBS:
            contenders[f"our steps, {jobs} jobs"] = _ours(serving.client, jobs, options.quick)
            if dbos:
                contenders[f"dbos steps, {jobs} workflows"] = _theirs(dbos, jobs, options.seconds)
        await by_turns(contenders, 1)  # warms up
        return await by_turns(contenders, options.rounds)


def _ours(client: Client, jobs: int, quick: bool) -> Rate:
    async def run() -> float:
        return await rate(client, jobs=jobs, steps=20 if quick else STEPS[jobs])

    return run


def _theirs(dbos: Peer, jobs: int, seconds: float) -> Rate:
    async def run() -> float:
        return (await dbos.contender(jobs, seconds)()).rate

    return run
