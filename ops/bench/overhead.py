"""What durability costs a step: the same modules in a bare loop in this process, and as a job."""

import random
from pathlib import Path
from time import perf_counter

import anyio.to_thread

from cards.branches import alone
from cards.family import Family, Made, Reads
from cards.loop import LoopContext, StepOutput
from cards.registry import load
from cards.request import GenerationRequest, resolve
from cards.wire import WorkPlan
from engine.client import Client
from engine.events import NodeCompleted, NodeStarted
from ops.bench.measure import Figure, engine, figure, log_of

FAMILY = "cards.shapes.family"
STEPS = 30
REPEATS = 5


async def run(data: Path) -> list[Figure]:
    request = GenerationRequest(
        model="shapes", prompt="a red circle moving right on a black background", seed=7, steps=STEPS
    )
    bare = Bare(load([FAMILY])["shapes"], request)
    bare_s: list[float] = []
    durable_s: list[float] = []
    async with engine(data, FAMILY) as serving:
        for _ in range(REPEATS + 1):
            bare_s.append(await anyio.to_thread.run_sync(bare.seconds_a_step))
            durable_s.append(await _seconds_a_step(serving.client, request))
    bare_s, durable_s = bare_s[1:], durable_s[1:]  # the first of each warms up
    ratios = [durable / one for durable, one in zip(durable_s, bare_s, strict=True)]
    added = [(durable - one) * 1e6 for durable, one in zip(durable_s, bare_s, strict=True)]
    return [
        figure("a denoise step of shapes in a bare loop", [one * 1e3 for one in bare_s], "ms", 2),
        figure("the same, durable through a worker process", [one * 1e3 for one in durable_s], "ms", 2),
        figure("ratio, durable to bare", ratios, "x", 3),
        figure("added to a step", added, "us", 0),
    ]


async def _seconds_a_step(client: Client, request: GenerationRequest) -> float:
    """From the log's own times of decision; the commits behind them overlap with the steps."""
    told = await log_of(client, await client.submit(request))
    began = next(t.at for t in told if isinstance(t.event, NodeStarted) and t.event.node == "denoise")
    ended = next(t.at for t in told if isinstance(t.event, NodeCompleted) and t.event.node == "denoise")
    return (ended - began) / STEPS


class Bare:
    """The step bodies called one after the other, with nothing kept but the latent."""

    def __init__(self, family: Family, request: GenerationRequest) -> None:
        import torch

        torch.set_num_threads(1)
        self._bodies = family.bodies()
        self._components = family.load("cpu")
        self._plans = _plans(family, request)

    def seconds_a_step(self) -> float:
        import torch

        with torch.inference_mode():
            encode, *steps = self._plans
            made = dict(self._made("encode_text", encode, {}).tensors)
            began = perf_counter()
            for plan in steps:
                made |= self._made("denoise", plan, made).tensors
            return (perf_counter() - began) / len(steps)

    def _made(self, kind: str, plan: WorkPlan, reads: Reads) -> Made:
        return alone(self._components, self._bodies[kind](self._components, plan, reads))


def _plans(family: Family, request: GenerationRequest) -> list[WorkPlan]:
    """The plans of the encode and denoise loops; what they read is left to the bare loop."""
    resolved = resolve(request, family.card, random.Random(0))
    plans: list[WorkPlan] = []
    for name in ("encode_text", "denoise"):
        loop = family.loops[family.card.loops[name].semantics]
        state = loop.init(LoopContext(family.card, resolved, name), {})
        while isinstance(plan := loop.next(state), WorkPlan):
            plans.append(plan)
            state = loop.advance(state, StepOutput())
    return plans
