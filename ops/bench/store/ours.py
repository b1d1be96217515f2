"""Appends through the journal, as an engine makes them: each awaited by the job that made it."""

from time import perf_counter, process_time

import anyio

from ops.bench.store.runs import Contender, Run
from store.journal import Append, Journal, NewEvent
from store.sql import SqlJournal

BODY = bytes(1024)


def step(stream: str, version: int, body: bytes = BODY) -> Append:
    """An event and a checkpoint of 1 KB each, fenced by version and epoch."""
    event = NewEvent("step_completed", body)
    return Append(stream=stream, expected=version, epoch=0, at=0.0, events=(event,), checkpoint=body)


class Jobs:
    """`count` jobs that append for as long as they are told, and go on where they were the next time."""

    def __init__(self, journal: Journal, count: int, name: str = "bench") -> None:
        self._journal = journal
        self._versions = {f"job/{name}-{count}-{n}": 0 for n in range(count)}

    def contender(self, seconds: float) -> Contender:
        async def run() -> Run:
            return await self.run(seconds)

        return run

    async def run(self, seconds: float) -> Run:
        took: list[float] = []
        commits, cpu, began = _commits(self._journal), process_time(), perf_counter()
        async with anyio.create_task_group() as tasks:
            for stream in self._versions:
                tasks.start_soon(self._append, stream, began + seconds, took)
        return Run(took, perf_counter() - began, process_time() - cpu, _commits(self._journal) - commits)

    async def _append(self, stream: str, deadline: float, took: list[float]) -> None:
        while (began := perf_counter()) < deadline:
            await self._journal.append(step(stream, self._versions[stream]))
            self._versions[stream] += 1
            took.append(perf_counter() - began)


def _commits(journal: Journal) -> int:
    assert isinstance(journal, SqlJournal)
    return journal.statistics().groups
