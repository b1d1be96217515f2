"""G9: what a checkpoint of 8 MB costs a step of 50 ms: the same step bodies in a bare loop, and as a durable job."""

from statistics import median
from time import perf_counter

import anyio.to_thread
from msgspec.structs import replace

from cards.request import GenerationRequest
from cards.wire import WorkPlan
from engine.client import Client
from engine.events import NodeCompleted, NodeStarted
from ops.bench import heavy
from ops.bench.measure import engine, figure, log_of
from ops.bench.store.goals import Outcome, at_most
from ops.bench.store.options import Options
from ops.bench.store.runs import by_turns

FAMILY = "ops.bench.heavy"
STEP_S = 0.05
STEPS = 40
LOSS = 1.0


async def run(options: Options) -> Outcome:
    steps = 5 if options.quick else STEPS
    async with engine(options.data / "pipeline", FAMILY) as serving:

        async def bare() -> float:
            return await anyio.to_thread.run_sync(_bare, steps)

        async def durable() -> float:
            return await _durable(serving.client, steps)

        contenders = {"in a bare loop": bare, "durable": durable}
        await by_turns(contenders, 1)  # warms up
        seen = await by_turns(contenders, options.rounds)
    what = f"a step of {1e3 * STEP_S:.0f} ms that leaves {heavy.MEGABYTES} MB"
    ratios = [durable / bare for bare, durable in zip(*seen.values(), strict=True)]
    figures = [figure(f"{what}, {name}", [1e3 * one for one in took], "ms", 2) for name, took in seen.items()]
    lost = 100 * (1 - 1 / median(ratios))
    goal = at_most("G9", f"{what}: throughput lost to durability", lost, LOSS, "%")
    # Durability gives nothing back: a gain beyond the limit says that the limit is finer than this measurement.
    return Outcome(figures, [replace(goal, met="unclear") if lost < -LOSS else goal])


def _bare(steps: int) -> float:
    body = heavy.FAMILY.bodies()["count"]
    plans = [_plan(step) for step in range(steps)]
    began = perf_counter()
    for plan in plans:
        body({}, plan, {})
    return (perf_counter() - began) / steps


def _plan(step: int) -> WorkPlan:
    return WorkPlan(instance="heavy", loop="count", kind="count", step=step, scalars={"step_s": STEP_S})


async def _durable(client: Client, steps: int) -> float:
    """Seconds a step, by the log's own times of decision."""
    request = GenerationRequest(model="heavy", prompt=str(STEP_S), steps=steps, seed=1)
    told = await log_of(client, await client.submit(request))
    began = next(one.at for one in told if isinstance(one.event, NodeStarted))
    ended = next(one.at for one in told if isinstance(one.event, NodeCompleted))
    return (ended - began) / steps
