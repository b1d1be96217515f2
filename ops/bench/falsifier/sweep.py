"""All runs of a comparison, on as many processes as there are processors, and what they come to."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct

from ops.bench.falsifier.contenders import CONTENDERS
from ops.bench.falsifier.outcomes import LATE_AT_MOST, Outcome, outcome
from ops.bench.falsifier.simulation import Simulation
from ops.bench.falsifier.trace import SEED, Trace, draw, read
from ops.bench.falsifier.worlds import BELIEVED, WORLDS

FILE = Path("docs/scheduling/results.json")


class Plan(Struct, frozen=True, kw_only=True):
    """What to run."""

    contenders: tuple[str, ...] = tuple(CONTENDERS)
    worlds: tuple[str, ...] = tuple(WORLDS)
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    """Of the traces; the first is the one that is shipped."""
    sessions: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 10, 12)
    """In the world that is believed in. In the others the most is searched for, with the first `searched` seeds."""
    searched: int = 3


QUICK = Plan(seeds=(1,), sessions=(1, 4, 8), worlds=(BELIEVED, "no films"))


class Run(Struct, frozen=True, kw_only=True):
    """One number of sessions."""

    contender: str
    seed: int
    sessions: int
    outcome: Outcome


class Capacity(Struct, frozen=True, kw_only=True):
    """The most sessions within the objective."""

    contender: str
    world: str
    seed: int
    sessions: int


class Results(Struct, frozen=True, kw_only=True):
    plan: Plan
    runs: tuple[Run, ...]
    capacities: tuple[Capacity, ...]


def run(plan: Plan, advance: Callable[[], None] = lambda: None) -> Results:
    """`advance` is called after each of `size(plan)` parts."""
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        parts: list[Future[Run | Capacity]] = [pool.submit(_run, *each) for each in _runs(plan)]
        parts += [pool.submit(_capacity, *each) for each in _searches(plan)]
        done: list[Run | Capacity] = []
        for part in as_completed(parts):
            done.append(part.result())
            advance()
    runs = sorted((one for one in done if isinstance(one, Run)), key=_order)
    found = [one for one in done if isinstance(one, Capacity)]
    believed = [
        Capacity(contender=contender, world=BELIEVED, seed=seed, sessions=_most(runs, contender, seed))
        for contender in plan.contenders
        for seed in plan.seeds
    ]
    return Results(plan=plan, runs=tuple(runs), capacities=tuple(sorted([*believed, *found], key=_order)))


def size(plan: Plan) -> int:
    return len(list(_runs(plan))) + len(list(_searches(plan)))


def search(is_within: Callable[[int], bool], most: int) -> int:
    """The most sessions, up to `most`, that are within an objective, if all fewer are and all more are not."""
    low, high = 0, min(4, most)
    while high < most and is_within(high):
        low, high = high, min(2 * high, most)
    if low < high and high == most and is_within(most):
        return most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_within(middle) else (low, middle)
    return low


def write(results: Results, file: Path = FILE) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.encode(results))


def load(file: Path = FILE) -> Results:
    return msgspec.json.decode(file.read_bytes(), type=Results)


def _runs(plan: Plan) -> Iterator[tuple[str, int, int]]:
    """Those that take longest first."""
    for sessions in sorted(plan.sessions, reverse=True):
        for seed in plan.seeds:
            for contender in plan.contenders:
                yield contender, seed, sessions


def _searches(plan: Plan) -> Iterator[tuple[str, str, int]]:
    for world in plan.worlds:
        for seed in plan.seeds[: plan.searched] if world != BELIEVED else ():
            for contender in plan.contenders:
                yield contender, world, seed


def _run(contender: str, seed: int, sessions: int) -> Run | Capacity:
    found = _outcome(contender, BELIEVED, seed, sessions)
    return Run(contender=contender, seed=seed, sessions=sessions, outcome=found)


def _capacity(contender: str, world: str, seed: int) -> Run | Capacity:
    def is_within(sessions: int) -> bool:
        return _outcome(contender, world, seed, sessions).late <= LATE_AT_MOST

    most = search(is_within, len(_trace(seed).sessions))
    return Capacity(contender=contender, world=world, seed=seed, sessions=most)


def _outcome(contender: str, world: str, seed: int, sessions: int) -> Outcome:
    run = Simulation(_trace(seed), sessions, CONTENDERS[contender], WORLDS[world]).run()
    return outcome(run.jobs, run.busy_s / run.lasts_s, WORLDS[world].within)


@cache
def _trace(seed: int) -> Trace:
    return read() if seed == SEED else draw(seed)


def _most(runs: Iterable[Run], contender: str, seed: int) -> int:
    """The last number of sessions before the first that is not within the objective."""
    most = 0
    for one in runs:
        if (one.contender, one.seed) == (contender, seed):
            if one.outcome.late > LATE_AT_MOST:
                break
            most = one.sessions
    return most


def _order(one: Run | Capacity) -> tuple[int, int, int, int]:
    world = BELIEVED if isinstance(one, Run) else one.world
    return list(WORLDS).index(world), list(CONTENDERS).index(one.contender), one.seed, one.sessions
