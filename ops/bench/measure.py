"""What the benchmarks share: an engine to measure, and how a figure is written down."""

import os
import platform
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

import anyio
from msgspec import Struct

from cards.request import GenerationRequest
from engine.client import Client
from engine.job import Job
from engine.views import Told
from ops.serve import Serving, running
from ops.settings import Settings
from ops.version import VERSION

NOOP = "ops.bench.noop"


class Figure(Struct, frozen=True):
    """One line of the table. `value` is the median of what was seen, with the least and the most."""

    what: str
    value: str
    seen: str = ""


def figure(what: str, values: Sequence[float], unit: str, digits: int = 1) -> Figure:
    least, most = min(values), max(values)
    return Figure(
        what, f"{median(values):.{digits}f} {unit}", f"{least:.{digits}f} to {most:.{digits}f}, n={len(values)}"
    )


def machine() -> str:
    cpu = next((line for line in _cpuinfo() if line.startswith("model name")), "model name : unknown").split(":")[1]
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return f"{os.cpu_count()} x{cpu}, {system}, keyframe {VERSION}"


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []


@asynccontextmanager
async def engine(
    data: Path,
    *families: str,
    workers: int = 1,
    store: str | None = None,
    ranks: int = 1,
    parallel: str | None = None,
) -> AsyncIterator[Serving]:
    """An engine in this process with its workers in theirs, ready."""
    settings = Settings(
        data=data,
        store=store,
        port=0,
        workers=workers,
        ranks=ranks,
        parallel=parallel,
        threads=1,
        families=families,
        log_level="error",
        max_active=1024,
    )
    async with running(settings) as serving:
        while not serving.client.readiness().ready:
            await anyio.sleep(0.01)
        yield serving


def noop(steps: int, step_s: float = 0.0, seed: int = 1) -> GenerationRequest:
    return GenerationRequest(model="noop", prompt=str(step_s), steps=steps, seed=seed)


async def log_of(client: Client, job: Job) -> list[Told]:
    """Everything that happened to a job, once it has ended."""
    return [told async for page in client.watch(job.id) for told in page]
