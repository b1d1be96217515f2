"""A step that two ranks share beside the same step on one, a thread each: the branches of guidance, or the tokens.

The checkpoint is random, of a size that makes a forward take about 500 ms on one thread. All pools make the same bits.
Beside the time of a step stands the processor time of the rank that took most: what the step would take if every rank
had a core of its own and exchanges took no time.
"""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any

import anyio.to_thread
import msgspec
import psutil
from msgspec import Struct

from cards.model import Model
from cards.request import GenerationRequest
from engine.client import Client
from engine.events import JobCompleted, NodeCompleted, StepCompleted
from ops.bench.measure import Figure, engine, figure, log_of
from ops.bench.random_wan import save

STEPS = 5
ROUNDS = 5

CFG, ULYSSES = "two ranks, cfg=2", "two ranks, ulysses=2"
POOLS: Mapping[str, dict[str, Any]] = {
    "one rank": {},
    CFG: {"ranks": 2, "parallel": "cfg=2"},
    ULYSSES: {"ranks": 2, "parallel": "ulysses=2"},
}

REQUESTS = {"guided": (5.0, [*POOLS]), "one branch": (1.0, ["one rank", ULYSSES])}
"""The guidance, and the pools that have something to share then."""


class Pool(Struct, frozen=True):
    client: Client
    ranks: Sequence[psutil.Process]


class Took(Struct, frozen=True):
    """Seconds a step, of which the busiest rank's processor time; and the digest of the latent."""

    step_s: float
    busiest_s: float
    latent: str


async def run(data: Path) -> list[Figure]:
    await anyio.to_thread.run_sync(save, data / "checkpoint", 6, 16)
    figures: list[Figure] = []
    async with AsyncExitStack() as stack:
        pools = {name: await _pool(stack, data, name) for name in POOLS}
        for kind, (guidance, names) in REQUESTS.items():
            figures += await _compare({name: pools[name] for name in names}, kind, guidance)
    return figures


async def _pool(stack: AsyncExitStack, data: Path, name: str) -> Pool:
    folder = data / name.replace(" ", "-")
    folder.mkdir()
    model = Model(name="wan", folder=str(data / "checkpoint"))
    (folder / "models.json").write_bytes(msgspec.json.encode([model]))
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    client = (await stack.enter_async_context(engine(folder, **POOLS[name]))).client
    ranks = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    return Pool(client, ranks)


async def _compare(pools: Mapping[str, Pool], kind: str, guidance: float) -> list[Figure]:
    """In each round every pool in turn, so that what else the machine does befalls all of them."""
    seen: dict[str, list[Took]] = {name: [] for name in pools}
    for number in range(ROUNDS + 1):
        round_ = {name: await _measure(pool, guidance) for name, pool in pools.items()}
        assert len({one.latent for one in round_.values()}) == 1, "the pools made different bits"
        if number:  # the first loads the modules
            for name, one in round_.items():
                seen[name].append(one)
    alone, *others = pools
    figures = []
    for name, took in seen.items():
        figures.append(figure(f"{kind}: a step, {name}", [one.step_s * 1e3 for one in took], "ms"))
        figures.append(figure("  processor time of the busiest rank", [one.busiest_s * 1e3 for one in took], "ms"))
    for name in others:
        pairs = [*zip(seen[alone], seen[name], strict=True)]
        figures.append(figure(f"{kind}: {alone} to {name}", [one.step_s / two.step_s for one, two in pairs], "x", 2))
        busiest = [one.busiest_s / two.busiest_s for one, two in pairs]
        figures.append(figure("  in processor time of the busiest rank", busiest, "x", 2))
    return figures


async def _measure(pool: Pool, guidance: float) -> Took:
    """Processor time is that of a job's further steps: what a job of one step takes as well is no part of it."""
    *_, short = await _job(pool, 1, guidance)
    step_s, latent, long = await _job(pool, 1 + STEPS, guidance)
    busiest = max(more - less for more, less in zip(long, short, strict=True))
    return Took(step_s, busiest / STEPS, latent)


async def _job(pool: Pool, steps: int, guidance: float) -> tuple[float, str, list[float]]:
    """The median of its denoising steps, the digest of its latent, and the processor time of each rank."""
    request = GenerationRequest(
        model="wan", prompt="a cat", seed=7, steps=steps, guidance=guidance, size="240x160", frames=13
    )
    before = [_processor_s(rank) for rank in pool.ranks]
    told = await log_of(pool.client, await pool.client.submit(request))
    took = [_processor_s(rank) - began for rank, began in zip(pool.ranks, before, strict=True)]
    assert isinstance(told[-1].event, JobCompleted), told[-1]
    events = [one.event for one in told]
    seconds = [event.seconds for event in events if isinstance(event, StepCompleted) and event.node == "denoise"]
    ended = next(event for event in events if isinstance(event, NodeCompleted) and event.node == "denoise")
    return median(seconds), ended.outputs["latent"].digest, took


def _processor_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
