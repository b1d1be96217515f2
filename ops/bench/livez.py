"""How soon the control plane answers while a worker is in the middle of long steps."""

from pathlib import Path
from time import perf_counter

import anyio
import httpx

from ops.bench.measure import NOOP, Figure, engine, noop

REQUESTS = 500
STEP_S = 0.5
PAUSE_S = 0.012
"""Between two requests, so that they are spread over a dozen steps."""


async def run(data: Path) -> list[Figure]:
    times: list[float] = []
    async with engine(data, NOOP) as serving, httpx.AsyncClient(base_url=serving.url) as http:
        job = await serving.client.submit(noop(1000, STEP_S))
        for _ in range(REQUESTS):
            began = perf_counter()
            (await http.get("/livez")).raise_for_status()
            times.append((perf_counter() - began) * 1e3)
            await anyio.sleep(PAUSE_S)
        await serving.client.cancel(job.id)
    times.sort()
    what = f"GET /livez while steps take {STEP_S:g} s"
    return [
        Figure(f"{what}, p50", f"{times[len(times) // 2]:.1f} ms", f"n={REQUESTS}"),
        Figure(f"{what}, p99", f"{times[len(times) * 99 // 100]:.1f} ms", f"n={REQUESTS}"),
    ]
