"""Durable steps that do nothing: how many a second one job gets, and sixteen together, through one worker."""

from pathlib import Path
from time import perf_counter

import anyio

from engine.client import Client
from engine.job import Job
from ops.bench.measure import NOOP, Figure, engine, figure, noop
from store.journal import Append, Journal, NewEvent
from store.open import open_journal

STEPS = 400
REPEATS = 5


async def run(data: Path) -> list[Figure]:
    alone: list[float] = []
    together: list[float] = []
    appends: list[float] = []
    async with engine(data / "engine", NOOP) as serving, open_journal(f"sqlite:///{data / 'bare.db'}") as journal:
        await rate(serving.client, jobs=1, steps=STEPS)
        for repeat in range(REPEATS):
            alone.append(await rate(serving.client, jobs=1, steps=STEPS))
            together.append(await rate(serving.client, jobs=16, steps=STEPS))
            appends.append(await _append_rate(journal, f"job/{repeat}"))
    return [
        figure("durable no-op steps, 1 job", alone, "/s", 0),
        figure("durable no-op steps, 16 jobs", together, "/s", 0),
        figure("appends to a bare journal, 1 caller, same disk", appends, "/s", 0),
    ]


async def rate(client: Client, *, jobs: int, steps: int) -> float:
    """Steps a second, from submitting the first job to the end of the last."""
    began = perf_counter()
    submitted: list[Job] = []

    async def submit(seed: int) -> None:
        submitted.append(await client.submit(noop(steps, seed=seed)))

    async with anyio.create_task_group() as tasks:
        for seed in range(jobs):
            tasks.start_soon(submit, seed)
    for job in submitted:  # one look at a time: whoever looks takes time from what is measured
        while not (await client.job(job.id)).terminal:
            await anyio.sleep(0.02)
    return jobs * steps / (perf_counter() - began)


async def _append_rate(journal: Journal, stream: str, count: int = 300) -> float:
    began = perf_counter()
    for version in range(count):
        event = NewEvent("step_completed", bytes(512))
        await journal.append(
            Append(stream=stream, expected=version, epoch=0, at=0.0, events=(event,), checkpoint=bytes(1024))
        )
    return count / (perf_counter() - began)
