"""What a stored blob costs beside the least that durability can: one write and one fdatasync of the same bytes."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time

import anyio.to_thread
from msgspec import Struct

from ops.bench.measure import Figure, figure
from store.blobs import Blobs, open_blobs

CHECKPOINT = 8_000_000
"""A latent of Wan 1.3B, 480p and 81 frames."""
SMALL = 512 * 1024
GROUP = 16
REPEATS = 15


class Spent(Struct, frozen=True):
    wall_s: float
    cpu_s: float


async def run(data: Path) -> list[Figure]:
    return await anyio.to_thread.run_sync(_run, data)


def _run(data: Path) -> list[Figure]:
    raw = data / "raw"
    raw.mkdir(parents=True)
    blobs = open_blobs(data / "blobs")
    return [
        *_compare("8 MB checkpoint", [CHECKPOINT], raw, blobs),
        *_compare("512 KB checkpoint", [SMALL], raw, blobs),
        *_compare(f"{GROUP} of 512 KB at once", [SMALL] * GROUP, raw, blobs),
    ]


def _compare(what: str, sizes: list[int], raw: Path, blobs: Blobs) -> list[Figure]:
    """By turns, as the disk is never the same for long. The first of each warms up."""
    raws: list[Spent] = []
    puts: list[Spent] = []
    for _ in range(REPEATS + 1):
        datas = [random.randbytes(size) for size in sizes]
        raws.append(_spent(_write, raw, datas))
        puts.append(_spent(blobs.put_many, datas))
    pairs = list(zip(raws, puts, strict=True))[1:]
    return [
        figure(f"{what}, write and fdatasync", [raw.wall_s * 1e3 for raw, _ in pairs], "ms", 2),
        figure(f"{what}, put", [put.wall_s * 1e3 for _, put in pairs], "ms", 2),
        figure(f"{what}, put against raw", [raw.wall_s / put.wall_s for raw, put in pairs], "x", 2),
        figure(f"{what}, CPU added", [(put.cpu_s - raw.cpu_s) * 1e3 for raw, put in pairs], "ms", 2),
    ]


def _write(folder: Path, datas: list[bytes]) -> None:
    """A file for each."""
    for data in datas:
        fd = os.open(folder / str(random.getrandbits(64)), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            os.write(fd, data)
            os.fdatasync(fd)
        finally:
            os.close(fd)


def _spent(call: Callable[..., object], *arguments: object) -> Spent:
    began, cpu = perf_counter(), process_time()
    call(*arguments)
    return Spent(perf_counter() - began, process_time() - cpu)
