"""One thing done to many jobs: each for itself, so that one that fails does not stop the others."""

from collections.abc import Awaitable, Callable, Iterable

import anyio
from msgspec import Struct

from ops.errors import OpsError
from ops.tables import note, show
from store.errors import StoreError

AT_ONCE = 16
"""Enough that their appends share commits."""


class Result(Struct, frozen=True):
    """Exactly one of `outcome` and `error` is there."""

    job: str
    outcome: str | None = None
    error: str | None = None


async def each(jobs: Iterable[str], act: Callable[[str], Awaitable[str]]) -> list[Result]:
    """`act` returns what came of it. The results are in the order of the jobs."""
    results: dict[str, Result] = {}
    room = anyio.Semaphore(AT_ONCE)

    async def one(job: str) -> None:
        try:
            results[job] = Result(job, outcome=await act(job))
        except (OpsError, StoreError) as error:
            results[job] = Result(job, error=str(error))
        finally:
            room.release()

    wanted = list(jobs)
    async with anyio.create_task_group() as tasks:
        for job in wanted:
            await room.acquire()
            tasks.start_soon(one, job)
    return [results[job] for job in wanted]


def report(results: list[Result], *, as_json: bool) -> int:
    """What came of each on the screen, and the exit code."""
    failed = [result for result in results if result.error is not None]
    if as_json:
        show([{"job": r.job, "outcome": r.outcome, "error": r.error} for r in results], as_json=True)
    else:
        show([{"job": r.job, "outcome": r.outcome} for r in results if r.error is None], as_json=False)
        for result in failed:
            note(f"error: {result.job}: {result.error}")
    return 1 if failed else 0
