"""What compiling the blocks of a transformer takes and gives: forwards of a Wan with random weights, by turns."""

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import anyio.to_thread

from cards.fingerprint import numerics
from cards.model import Model
from cards.modules import Modules
from cards.registry import open_model
from ops.bench import random_wan
from ops.bench.measure import Figure, figure
from workers.compiled import Tier

LAYERS, HEADS = 4, 8
LATENT = (1, 16, 3, 30, 52)
"""Of nine frames of 416x240."""
REPEATS = 10


async def run(data: Path) -> list[Figure]:
    random_wan.save(data, LAYERS, HEADS)
    return await anyio.to_thread.run_sync(_measure, data)


def _measure(data: Path) -> list[Figure]:
    import torch

    torch.set_num_threads(1)
    spent: list[float] = []
    tier = Tier(numerics(), spent.append)
    eager, compiled = (_transformer(data) for _ in range(2))
    tier.compile("wan/transformer", compiled)
    given = {
        "hidden_states": torch.randn(LATENT, generator=torch.Generator().manual_seed(1)),
        "timestep": torch.tensor([500.0]),
        "encoder_hidden_states": torch.randn(1, 512, 32, generator=torch.Generator().manual_seed(2)),
    }
    with torch.inference_mode():
        first_s, off = _seconds(lambda: compiled(**given).sample - eager(**given).sample)
        turns = [[_seconds(lambda: one(**given))[0] for one in (eager, compiled)] for _ in range(REPEATS)]  # noqa: B023
    eager_s, compiled_s = zip(*turns, strict=True)
    return [
        figure("a forward in eager kernels", [one * 1e3 for one in eager_s], "ms"),
        figure("the same with compiled blocks", [one * 1e3 for one in compiled_s], "ms"),
        figure("ratio, eager to compiled", [one / other for one, other in turns], "x", 2),
        Figure("compiling, at the first forward of a shape", f"{sum(spent):.1f} s", f"of {first_s:.1f} s"),
        Figure("the largest difference, of about 1", f"{float(off.abs().max()):.1e}", tier.failed or "compiled"),
    ]


def _transformer(data: Path) -> Any:
    modules = open_model(Model(name="wan", folder=str(data))).load("cpu")
    assert isinstance(modules, Modules)
    return modules["transformer"]


def _seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    began = perf_counter()
    made = call()
    return perf_counter() - began, made
