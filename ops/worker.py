"""Builds worker processes: the settings of one, and the command lines that start one and its other ranks."""

import sys
from collections.abc import Collection

import msgspec

from cards.roles import Role
from ops.blobs import WorkerBlobs
from ops.models import read_models
from ops.settings import Settings
from store.blobs import open_blobs
from workers import process
from workers.process import WorkerSettings


def settings_of(
    settings: Settings,
    address: str,
    parent: int | None,
    slot: int = 0,
    without: Collection[str] = (),
    serves: tuple[Role, ...] = (),
    beside: int = 0,
) -> WorkerSettings:
    """`without` are registered models that the engine cannot use, and has said so; `beside` are its other workers."""
    return WorkerSettings(
        connect=address,
        pool=settings.pool,
        serves=serves,
        transfers=settings.listen_transfers or "",
        families=settings.families,
        models=tuple(model for model in read_models(settings) if model.name not in without),
        extensions=settings.extensions,
        ranks=settings.ranks,
        device=settings.device,
        slot=slot,
        beside=beside,
        parallel=settings.plan,
        rank_timeout_s=settings.rank_timeout_s,
        threads=settings.threads,
        memory_bytes=None if settings.memory_gib is None else int(settings.memory_gib * (1 << 30)),
        weights_bytes=settings.weights_bytes,
        compile=settings.compile,
        heartbeat_s=min(1.0, settings.silent_s / 4),
        parent=parent,
    )


def command(worker: WorkerSettings, blobs: str, rank: int = 0) -> list[str]:
    """Runs `main` in a process of its own."""
    return [sys.executable, "-m", "ops.worker", str(rank), blobs, msgspec.json.encode(worker).decode()]


def run(worker: WorkerSettings, blobs: str, rank: int = 0) -> str:
    """A worker's life in this process. Returns why it ended."""
    store = WorkerBlobs(open_blobs(blobs))
    if rank > 0:
        return process.follow_rank_zero(worker, store, rank)
    return process.lead(worker, store, lambda of_rank, rank: command(of_rank, blobs, rank))


def main() -> None:
    rank, blobs, encoded = sys.argv[1:]
    worker = msgspec.json.decode(encoded, type=WorkerSettings)
    process.ignore_interrupts(worker)
    run(worker, blobs, int(rank))


if __name__ == "__main__":
    main()
