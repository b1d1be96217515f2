"""A job through the engine beside the library's own pipeline call: the same modules, the same request, the same bits.

The checkpoints are random, of a size that makes a step take about 5, 50 and 500 ms on one thread.
"""

from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import anyio.to_thread
import msgspec

from cards import codec
from cards.model import Model
from cards.request import GenerationRequest
from engine.client import Client
from engine.events import JobCompleted, NodeCompleted, NodeStarted, StepCompleted
from ops.bench.measure import Figure, engine, figure, log_of
from ops.bench.random_wan import save

STEPS = 20
ROUNDS = 5

SIZES: Mapping[str, dict[str, Any]] = {
    "5 ms": {"layers": 2, "heads": 2, "size": "48x32", "frames": 5},
    "50 ms": {"layers": 4, "heads": 6, "size": "160x96", "frames": 9},
    "500 ms": {"layers": 6, "heads": 16, "size": "240x160", "frames": 13},
}


async def run(data: Path) -> list[Figure]:
    figures: list[Figure] = []
    for name, about in SIZES.items():
        folder = data / name.replace(" ", "-")
        await anyio.to_thread.run_sync(save, folder / "checkpoint", about["layers"], about["heads"])
        (folder / "engine").mkdir()
        model = Model(name="wan", folder=str(folder / "checkpoint"))
        (folder / "engine" / "models.json").write_bytes(msgspec.json.encode([model]))
        figures += await _compare(name, folder, about)
    return figures


async def _compare(name: str, folder: Path, about: Mapping[str, Any]) -> list[Figure]:
    request = GenerationRequest(
        model="wan", prompt="a cat", seed=7, steps=STEPS, guidance=5.0, size=about["size"], frames=about["frames"]
    )
    bare = Bare(folder / "checkpoint", request)
    bare_s: list[float] = []
    durable_s: list[float] = []
    steps_s: list[float] = []
    async with engine(folder / "engine") as serving:
        for _ in range(ROUNDS + 1):
            seconds, expected = await anyio.to_thread.run_sync(bare.run)
            bare_s.append(seconds)
            seconds, inside, made = await _durable(serving.client, request)
            durable_s.append(seconds)
            steps_s.append(inside)
            assert made == expected, "the two made different bits"
    ratios = [durable / one for durable, one in zip(durable_s[1:], bare_s[1:], strict=True)]
    return [
        figure(f"{name}: a step of the pipeline", [one / STEPS * 1e3 for one in bare_s[1:]], "ms", 2),
        figure(f"{name}: a durable step", [one / STEPS * 1e3 for one in durable_s[1:]], "ms", 2),
        figure(f"{name}: of that in step bodies", [one / STEPS * 1e3 for one in steps_s[1:]], "ms", 2),
        figure(f"{name}: ratio, durable to the pipeline", ratios, "x", 3),
    ]


async def _durable(client: Client, request: GenerationRequest) -> tuple[float, float, str]:
    """Seconds from the first node's start to the latent, those within step bodies, and the latent's digest."""
    told = await log_of(client, await client.submit(request))
    assert isinstance(told[-1].event, JobCompleted), told[-1]
    began = next(one.at for one in told if isinstance(one.event, NodeStarted))
    ended = next(one for one in told if isinstance(one.event, NodeCompleted) and one.event.node == "denoise")
    steps = [one.event for one in told if isinstance(one.event, StepCompleted) and one.position < ended.position]
    assert isinstance(ended.event, NodeCompleted)
    return ended.at - began, sum(step.seconds for step in steps), ended.event.outputs["latent"].digest


class Bare:
    """`WanPipeline.__call__`, to the latent."""

    def __init__(self, checkpoint: Path, request: GenerationRequest) -> None:
        from diffusers import WanPipeline

        self._pipeline = WanPipeline.from_pretrained(checkpoint)
        self._pipeline.set_progress_bar_config(disable=True)
        self._request = request

    def run(self) -> tuple[float, str]:
        import torch

        torch.set_num_threads(1)  # of the thread that computes
        request = self._request
        width, height = map(int, str(request.size).split("x"))
        began = perf_counter()
        latent = self._pipeline(
            prompt=request.prompt,
            negative_prompt=request.negative_prompt,
            width=width,
            height=height,
            num_frames=request.frames,
            num_inference_steps=request.steps,
            guidance_scale=request.guidance,
            generator=torch.Generator().manual_seed(request.seed or 0),
            output_type="latent",
        ).frames
        return perf_counter() - began, codec.encode(latent)[0].digest
