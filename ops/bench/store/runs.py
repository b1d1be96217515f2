"""One run of one contender, and the runs of all of them by turns."""

import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TypeVar

from msgspec import Struct

from ops.bench.measure import Figure


class Run(Struct, frozen=True):
    """How long each write took. `cpu_s` is of the process that wrote; `commits` where they were counted."""

    took_s: list[float]
    wall_s: float
    cpu_s: float = 0.0
    commits: int = 0

    @property
    def rate(self) -> float:
        return len(self.took_s) / self.wall_s

    @property
    def cpu_us(self) -> float:
        return self.cpu_s / len(self.took_s) * 1e6

    @property
    def group(self) -> float:
        """Appends a commit."""
        return len(self.took_s) / self.commits if self.commits else 0.0

    def quantile_ms(self, share: float) -> float:
        return 1e3 * sorted(self.took_s)[int(share * (len(self.took_s) - 1))]


Contender = Callable[[], Awaitable[Run]]
Seen = TypeVar("Seen")


async def by_turns(contenders: Mapping[str, Callable[[], Awaitable[Seen]]], rounds: int) -> dict[str, list[Seen]]:
    """Each contender once a round, so that what changes on the machine meanwhile changes for all of them."""
    runs: dict[str, list[Seen]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            runs[name].append(await contender())
    return runs


def rates(what: str, runs: list[Run]) -> Figure:
    seen = [run.rate for run in runs]
    value = f"{median(seen):.0f} /s"
    p50, p99 = (median(run.quantile_ms(share) for run in runs) for share in (0.5, 0.99))
    detail = f"{min(seen):.0f} to {max(seen):.0f}, n={len(seen)}; p50 {p50:.2f} ms, p99 {p99:.2f} ms"
    if cpu := median(run.cpu_us for run in runs):
        detail += f"; {cpu:.0f} us CPU"
    if group := median(run.group for run in runs):
        detail += f"; {group:.1f} a commit"
    return Figure(what, value, detail)


def ratio(one: list[Run], other: list[Run]) -> float:
    """Of the rates, round by round: the two of a round saw the same machine."""
    return median(a.rate / b.rate for a, b in zip(one, other, strict=True))


async def fsync_probe(folder: Path) -> Run:
    """What the disk itself takes for the least that can be made durable."""
    took: list[float] = []
    began = perf_counter()
    with (folder / "probe").open("wb", buffering=0) as file:
        while (at := perf_counter()) < began + 0.3:
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            took.append(perf_counter() - at)
    return Run(took, perf_counter() - began)
