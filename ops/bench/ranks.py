"""A step that two ranks share beside the same step on one, a thread each: the branches of guidance, or the tokens.

The checkpoint is random, of a size that makes a guided step take about 500 ms on one thread. All pools make the same
bits.
"""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any

import anyio.to_thread
import msgspec

from cards.model import Model
from cards.request import GenerationRequest
from engine.client import Client
from engine.events import JobCompleted, NodeCompleted, StepCompleted
from ops.bench.measure import Figure, engine, figure, log_of
from ops.bench.random_wan import save

STEPS = 5
ROUNDS = 5

POOLS: Mapping[str, dict[str, Any]] = {
    "one rank": {},
    "two ranks, cfg=2": {"ranks": 2, "parallel": "cfg=2"},
    "two ranks, ulysses=2": {"ranks": 2, "parallel": "ulysses=2"},
}

REQUESTS = {"guided": 5.0, "without guidance": 1.0}


async def run(data: Path) -> list[Figure]:
    await anyio.to_thread.run_sync(save, data / "checkpoint", 6, 16)
    figures: list[Figure] = []
    async with AsyncExitStack() as stack:
        clients: dict[str, Client] = {}
        for name, settings in POOLS.items():
            folder = data / name.replace(" ", "-")
            folder.mkdir()
            model = Model(name="wan", folder=str(data / "checkpoint"))
            (folder / "models.json").write_bytes(msgspec.json.encode([model]))
            clients[name] = (await stack.enter_async_context(engine(folder, **settings))).client
        for kind, guidance in REQUESTS.items():
            figures += await _compare(clients, kind, guidance)
    return figures


async def _compare(clients: Mapping[str, Client], kind: str, guidance: float) -> list[Figure]:
    """In each round every pool in turn, so that what else the machine does befalls all of them."""
    seen: dict[str, list[float]] = {name: [] for name in clients}
    for number in range(ROUNDS + 1):
        latents = set()
        for name, client in clients.items():
            seconds, latent = await _step_s(client, guidance)
            latents.add(latent)
            if number:  # the first loads the modules
                seen[name].append(seconds)
        assert len(latents) == 1, "the pools made different bits"
    alone, *others = clients
    figures = [figure(f"{kind}: a step, {name}", [one * 1e3 for one in seen[name]], "ms") for name in clients]
    for name in others:
        ratios = [one / shared for one, shared in zip(seen[alone], seen[name], strict=True)]
        figures.append(figure(f"{kind}: {alone} to {name}", ratios, "x", 2))
    return figures


async def _step_s(client: Client, guidance: float) -> tuple[float, str]:
    """The median of the denoising steps of a job, and the digest of its latent."""
    request = GenerationRequest(
        model="wan", prompt="a cat", seed=7, steps=STEPS, guidance=guidance, size="240x160", frames=13
    )
    told = await log_of(client, await client.submit(request))
    assert isinstance(told[-1].event, JobCompleted), told[-1]
    events = [one.event for one in told]
    steps = [event.seconds for event in events if isinstance(event, StepCompleted) and event.node == "denoise"]
    ended = next(event for event in events if isinstance(event, NodeCompleted) and event.node == "denoise")
    return median(steps), ended.outputs["latent"].digest
