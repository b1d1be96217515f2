"""A multistep solver whose states are all stored, and the same with a snapshot every eight steps: bytes and time."""

from pathlib import Path
from time import perf_counter

from msgspec import Struct

from cards.request import GenerationRequest
from engine.client import Client
from ops.bench import multistep
from ops.bench.measure import Figure, engine, figure, log_of

FAMILY = multistep.Multistep("multistep-folded", snapshot_every=8)
STEPS = 24
STEP_S = 0.05
REPEATS = 3


class Spent(Struct, frozen=True):
    seconds: float
    nbytes: float


async def run(data: Path) -> list[Figure]:
    whole: list[Spent] = []
    folded: list[Spent] = []
    async with engine(data, multistep.__name__, __name__) as serving:
        for n in range(REPEATS + 1):
            whole.append(await _step(serving.client, data, multistep.FAMILY.card.name, seed=2 * n))
            folded.append(await _step(serving.client, data, FAMILY.card.name, seed=2 * n + 1))
    whole, folded = whole[1:], folded[1:]  # the first of each warms up
    return [
        *_figures("every state stored", whole),
        *_figures("a snapshot every 8 steps", folded),
        figure("bytes, folded to whole", [f.nbytes / w.nbytes for w, f in zip(whole, folded, strict=True)], "x", 3),
    ]


def _figures(what: str, spent: list[Spent]) -> list[Figure]:
    return [
        figure(f"a step, {what}", [1e3 * one.seconds for one in spent], "ms", 1),
        figure(f"on disk a step, {what}", [one.nbytes / 1e6 for one in spent], "MB", 2),
    ]


async def _step(client: Client, data: Path, model: str, seed: int) -> Spent:
    """From submitting to the end, a step, and what the data folder grew by. A seed has bytes of its own."""
    before, began = _nbytes(data), perf_counter()
    request = GenerationRequest(model=model, prompt=str(STEP_S), steps=STEPS, seed=seed)
    await log_of(client, await client.submit(request))
    return Spent((perf_counter() - began) / STEPS, (_nbytes(data) - before) / STEPS)


def _nbytes(data: Path) -> int:
    return sum(path.stat().st_size for path in data.rglob("*") if path.is_file())
