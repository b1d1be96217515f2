"""Plays a cell and says what was seen of it."""

import re
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from msgspec import Struct, field

from tests.faults.cells import Cell
from tests.faults.place import SILENT_S, Place, Watch, missed
from tests.processes import until

WATCH_S = 0.5
"""How often an engine looks who has fallen silent."""

BUSY_S = 3.0
"""What a busy machine may add to the time in which a fault must be noticed."""

SEEDS = {"idle": (1,), "loaded": (1, 2, 3, 4)}
END_S = 120.0
ENDED = ("completed", "failed", "cancelled")

Made = dict[int, Any]
"""What the steps of a job make, by its seed, when nothing happens to it."""


class Seen(Struct):
    """`down_s` and `up_s` are from the fault on: until readiness said so, and until all was well again."""

    load: str
    cell: Cell
    down_s: float | None = None
    up_s: float | None = None
    why: str = ""
    ended: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def look(self, watch: Watch, at: float) -> None:
        """What readiness has said since the fault."""
        self.down_s = watch.when(at, ready=False)
        self.why = watch.down_after(at) or ""
        if self.down_s is not None and (more_s := watch.when(at + self.down_s, ready=True)) is not None:
            self.up_s = self.down_s + more_s

    def __str__(self) -> str:
        down = "ready all the time"
        if self.down_s is not None:
            down = f"not ready after {self.down_s:.2f} s, ready after {self.up_s or 0:.1f} s"
        jobs = ", ".join(f"{count} {how}" for how, count in sorted(self.ended.items()))
        return f"{self.load:6} {self.cell.setup.name:6} {self.cell.target:7} {self.cell.fault:16} {down:48} {jobs}"


def undisturbed(place: Place, load: str = "loaded") -> Made:
    jobs = {seed: place.submit(seed) for seed in SEEDS[load]}
    for job in jobs.values():
        assert not missed(lambda job=job: place.running.job(job)["status"] == "completed", END_S)  # type: ignore[misc]
    return {seed: place.made(job) for seed, job in jobs.items()}


def play(place: Place, cell: Cell, load: str, made: Made) -> Seen:
    seen = Seen(load, cell)
    place.ready()
    before, there = place.holds(), place.processes()
    with Watch(place.url) as watch:
        until(lambda: watch.now == Watch.READY, "it to be seen to be ready")
        jobs, at = _befall(place, cell, load, watch, seen)
        there |= place.processes()
        seen.problems += _ended(place, cell, jobs, made, seen)
        if problem := missed(lambda: watch.now == Watch.READY, 60):
            seen.problems.append(f"it is not ready again: {watch.now} ({problem})")
        if cell.keeps_processes and place.processes() != there:
            seen.problems.append("its processes are not those of before")
        there |= place.processes()
    seen.look(watch, at)
    seen.problems += _told(cell, seen)
    seen.problems += place.leaks(before)
    seen.problems += place.orphans(there)
    seen.problems += (f"{file} has befallen nobody" for file in place.planted())
    return seen


def _befall(place: Place, cell: Cell, load: str, watch: Watch, seen: Seen) -> tuple[dict[int, str], float]:
    """The jobs that are there, by seed, and when it happened. Without load a job comes once all is well again."""
    if cell.in_step:
        at = time.monotonic()
        cell.befall(place)
        return {seed: place.submit(seed) for seed in SEEDS[load]}, at
    jobs = {}
    if load == "loaded":
        jobs = {seed: place.submit(seed) for seed in SEEDS[load]}
        until(lambda: sum(len(place.running.steps(job)) for job in jobs.values()) >= 6, "the jobs to be under way")
    at = time.monotonic()
    undo = cell.befall(place)
    if problem := missed(lambda: watch.down_after(at) is not None, 30):
        seen.problems.append(f"nobody was told of it ({problem})")
    undo()
    return jobs or _after(place, watch), at


def _after(place: Place, watch: Watch) -> dict[int, str]:
    until(lambda: watch.now == Watch.READY, "it to be ready again", 60)
    return {seed: place.submit(seed) for seed in SEEDS["idle"]}


def _ended(place: Place, cell: Cell, jobs: dict[int, str], made: Made, seen: Seen) -> Iterator[str]:
    """Every job in the way that it must."""
    for seed, job in jobs.items():
        if problem := missed(lambda job=job: place.running.job(job)["status"] in ENDED, END_S):  # type: ignore[misc]
            yield f"{job} does not end ({problem})"
        else:
            yield from _end_of(place, cell, job, made[seed], seen)
    failed = sum(count for how, count in seen.ended.items() if how.startswith("failed"))
    if failed != (cell.fails is not None):
        yield f"{failed} jobs failed"


def _end_of(place: Place, cell: Cell, job: str, whole: Any, seen: Seen) -> Iterator[str]:
    """`whole` is what its steps make when nothing happens to it."""
    found, made = place.running.job(job), place.made(job)
    error = found.get("error")
    seen.ended[f"failed ({error['class']})" if error else found["status"]] += 1
    seen.lost += [event["data"]["reason"] for event in place.running.events(job) if event["type"] == "worker_lost"]
    if error:
        seen.errors.append(error["message"])
    if made != (whole[: len(made)] if error else whole):
        yield f"{job} has made something else than when nothing happens to it"
    if error and not (error["class"] == cell.fails and error["message"] and error["step"] == 1):
        yield f"{job} failed with {error}, and not with {cell.fails}"
    names = {artifact["name"] for _, _, _, artifacts in made for artifact in artifacts}
    if {artifact["name"] for artifact in found["artifacts"]} != names:
        yield f"{job} has lost some of what it had made"


def _told(cell: Cell, seen: Seen) -> Iterator[str]:
    """What readiness said of it."""
    if cell.goes_down is not None and (seen.down_s is not None) != cell.goes_down:
        yield f"it should {'' if cell.goes_down else 'not '}have been seen not to be ready: {seen.why}"
    within_s = SILENT_S + WATCH_S + BUSY_S
    if not cell.in_step and seen.down_s is not None and seen.down_s > within_s:
        yield f"it was noticed after {seen.down_s:.1f} s, and it should be within {within_s:g} s"
    if cell.loses and not seen.lost:
        yield "no worker was lost"
    said = seen.lost + seen.errors
    if cell.says and not any(re.search(cell.says, one) for one in said):
        yield f"nobody says {cell.says!r}, but {said}"
    if cell.fails and seen.lost:
        yield f"a worker was lost with a job that failed by itself: {seen.lost}"
