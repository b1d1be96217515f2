"""A latent state of 32 MB on its way from one worker process to another: through shared memory, over ZeroMQ, and by the
blob store of a data folder, as it went before there were transfers.

Each time from when it is wanted to when it is a tensor again, whose bytes have been checked; for the store it is put
there first, durably, which the step that made it waits for.
"""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import anyio.to_thread
import torch

from cards import codec
from cards.wire import Fetch, TensorRef, UnitId, WorkPlan, WorkUnit
from ops.bench.measure import Figure, figure
from store.blobs import open_blobs
from workers.transfer_fetcher import Brought
from workers.transfers import Transfers, transferring

NBYTES = 32_000_000
REPEATS = 9

Move = Callable[[int], None]


def latent(n: int) -> tuple[TensorRef, torch.Tensor]:
    """One that nobody has had: the seed is its number."""
    tensor = torch.randn(NBYTES // 4, generator=torch.Generator().manual_seed(n))
    return codec.refer(tensor)[0], tensor


async def run(data: Path) -> list[Figure]:
    return await anyio.to_thread.run_sync(_run, data)


def _run(data: Path) -> list[Figure]:
    took: dict[str, list[float]] = {"shared memory": [], "ZeroMQ": [], "blob store": []}
    with _holder("") as (shared, first), _holder("elsewhere") as (sent, second), transferring(_nothing) as asker:
        moves = {
            "shared memory": lambda n: _fetch(asker, shared, first[n]),
            "ZeroMQ": lambda n: _fetch(asker, sent, second[n]),
            "blob store": _by_store(data),
        }
        for n in range(REPEATS + 1):  # by turns: a machine is not the same for long
            for name, move in moves.items():
                began = perf_counter()
                move(n)
                took[name].append(perf_counter() - began)
    took = {name: seconds[1:] for name, seconds in took.items()}  # the first of each warms up
    stored = took["blob store"]
    return [
        *(figure(f"32 MB, {name}", [1e3 * one for one in seconds], "ms") for name, seconds in took.items()),
        *(
            figure(f"{name} against the store", [s / one for s, one in zip(stored, seconds, strict=True)], "x", 2)
            for name, seconds in took.items()
            if name != "blob store"
        ),
    ]


def _fetch(asker: Transfers, address: str, ref: TensorRef) -> None:
    came: list[Brought] = []
    news = threading.Event()

    def arrived(brought: Brought) -> None:
        came.append(brought)
        news.set()

    plan = WorkPlan(instance="", loop="", kind="", step=0)
    asker.fetch(WorkUnit(UnitId("bench", 1, 1, 1), plan, fetch=Fetch(address, (ref.digest,))), arrived)
    news.wait()
    codec.decode(came[0].blobs[ref.digest])


def _by_store(data: Path) -> Move:
    blobs = open_blobs(data / "blobs")

    def move(n: int) -> None:
        ref, tensor = made[n]
        blobs.put_named({ref.digest: b"".join(codec.parts(tensor))})
        codec.decode(blobs.get(ref.digest))

    made = [latent(n) for n in range(REPEATS + 1)]
    return move


def _nothing(job: str, digest: str) -> None:
    return None


@contextmanager
def _holder(place: str) -> Iterator[tuple[str, list[TensorRef]]]:
    """A process that holds the latents: where it gives them away, and what they are called."""
    command = [sys.executable, "-m", "ops.bench.transfers", place]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        yield address, [latent(n)[0] for n in range(REPEATS + 1)]
    finally:
        process.terminate()
        process.wait()


def _hold(place: str) -> None:
    there = {ref.digest: tensor for ref, tensor in map(latent, range(REPEATS + 1))}
    with transferring(lambda job, digest: there.get(digest), place=place or None) as holder:
        print(holder.address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    _hold(sys.argv[1])
