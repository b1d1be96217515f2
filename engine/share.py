"""Which of several engines takes which open job: all of them know without asking, and so none is in another's way."""

from collections.abc import Mapping, Sequence

from blake3 import blake3

from store.journal import EngineRow, JobRow


def ours(job: JobRow, me: str, engines: Sequence[EngineRow]) -> bool:
    """Whether a job that nobody drives is for `me` to take: rendezvous hashing over the live engines that can run it.

    A job that was given to an engine by name is for that one; one that nobody has workers for is shared out as well.
    """
    live = [engine for engine in engines if engine.left_s > 0]
    if job.owner == me:
        return True
    able = [engine.name for engine in live if job.model in engine.models] or [engine.name for engine in live]
    return me == max(able, key=lambda name: _weight(job.id, name), default=me)


def overdue(job: JobRow, since: Mapping[str, float], now: float, patience_s: float) -> bool:
    """Whether the engine that a job is for has had its time to take it."""
    return now - since.get(job.id, now) > patience_s


def _weight(job: str, engine: str) -> bytes:
    return blake3(f"{job}\0{engine}".encode()).digest()
