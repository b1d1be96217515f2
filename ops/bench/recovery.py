"""Kill -9 of the engine with a hundred jobs half-way: how long until a new one has them all going again.

The worker lives on, as on a host of its own, and finds the new engine at the old address. Times are those in the log,
of the decision; its commit follows within a few milliseconds.
"""

import time
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from ops.bench.measure import NOOP, Figure, figure
from ops.bench.processes import EngineProcess, until, worker
from store.journal import Event
from store.open import open_journal

JOBS = 100
REPEATS = 3


async def run(data: Path) -> list[Figure]:
    figures = []
    for steps in (20, 500):
        claimed, moving = await times(data, steps, REPEATS)
        what = f"{JOBS} jobs with {steps} steps behind them, from process start until"
        figures.append(figure(f"{what} all are claimed", [1e3 * s for s in claimed], "ms", 0))
        figures.append(figure(f"{what} each has a new step", [1e3 * s for s in moving], "ms", 0))
    return figures


async def times(data: Path, steps: int, repeats: int) -> tuple[list[float], list[float]]:
    """Seconds until all are claimed and until each has a new step, a pair for each repeat."""
    seen = [await anyio.to_thread.run_sync(_once, data / f"{steps}-{n}", steps) for n in range(repeats)]
    return [claimed for claimed, _ in seen], [moving for _, moving in seen]


def _once(data: Path, steps: int) -> tuple[float, float]:
    """Seconds from process start until all jobs are claimed, and until each has completed a new step."""
    data.mkdir(parents=True)
    address = f"ipc://{data}/w"
    settings: dict[str, Any] = {"families": NOOP, "workers": 0, "listen_workers": address, "max_active": 1000}
    with worker(data, address, families=NOOP, silent_s=1):
        first = EngineProcess(data, **settings)
        jobs = [first.submit("0.0", model="noop", steps=1_000_000, seed=n) for n in range(JOBS)]
        until(lambda: first.job(jobs[-1])["progress"]["step"] >= steps, "the jobs to be half-way")
        first.kill()
        last = anyio.run(_last_position, data)
        began = time.time()
        second = EngineProcess(data, ready=False, **settings)
        try:
            claimed, moving = anyio.run(_going_again, data, last)
        finally:
            second.kill_tree()
    return claimed - began, moving - began


async def _last_position(data: Path) -> int:
    return max(event.position for event in await _events_after(data, 0))


async def _going_again(data: Path, after: int) -> tuple[float, float]:
    """When the last of the jobs was claimed, and when the last of them completed its first new step."""
    while True:
        claimed: dict[str, float] = {}
        moving: dict[str, float] = {}
        for event in await _events_after(data, after):
            if event.type == "job_recovered":
                claimed.setdefault(event.stream, event.at)
            elif event.type == "step_completed":
                moving.setdefault(event.stream, event.at)
        if len(moving) == JOBS:
            return max(claimed.values()), max(moving.values())
        await anyio.sleep(0.2)


async def _events_after(data: Path, after: int) -> list[Event]:
    events: list[Event] = []
    async with open_journal(f"sqlite:///{data}/keyframe.db", writable=False) as journal:
        while page := await journal.read_all(after=events[-1].position if events else after, limit=10_000):
            events += page
    return events
