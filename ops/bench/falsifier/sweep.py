"""All runs of a comparison, on as many processes as there are processors, and what they come to."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from itertools import takewhile
from pathlib import Path
from statistics import mean, median

import msgspec
from msgspec import Struct

from ops.bench.falsifier.contenders import CONTENDERS
from ops.bench.falsifier.outcomes import LATE_AT_MOST, Outcome, outcome
from ops.bench.falsifier.simulation import Simulation
from ops.bench.falsifier.trace import SEED, Trace, draw, read
from ops.bench.falsifier.worlds import BELIEVED, BURSTS, WORLDS

FILE = Path("docs/scheduling/results.json")

SHOWN = 4
"""The number of sessions that is looked at closely, and the only one in worlds that are not believed in."""


class Plan(Struct, frozen=True, kw_only=True):
    """What to run."""

    contenders: tuple[str, ...] = tuple(CONTENDERS)
    worlds: tuple[str, ...] = tuple(WORLDS)
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    """Of the traces; the first is the one that is shipped."""
    sessions: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8)
    """In the world that is believed in."""
    others: int = 3
    """In the others there are so many of the traces."""

    @property
    def compared(self) -> tuple[int, ...]:
        """Those that are run in every world."""
        return self.seeds[: self.others]


QUICK = Plan(seeds=(1,), sessions=(1, 4), worlds=(BELIEVED, BURSTS))


class Run(Struct, frozen=True, kw_only=True):
    """A trace with one number of sessions."""

    contender: str
    world: str = BELIEVED
    seed: int = SEED
    sessions: int = SHOWN


class Ran(Struct, frozen=True):
    run: Run
    outcome: Outcome


class Results(Struct, frozen=True, kw_only=True):
    plan: Plan
    ran: tuple[Ran, ...]

    def late(
        self, contender: str, world: str = BELIEVED, sessions: int = SHOWN, seeds: Sequence[int] | None = None
    ) -> float:
        """The share of requests that are late, on average over these traces, or all."""
        wanted = (contender, world, sessions)
        return mean(
            one.outcome.late
            for one in self.ran
            if (one.run.contender, one.run.world, one.run.sessions) == wanted
            and one.run.seed in (self.plan.seeds if seeds is None else seeds)
        )

    def capacities(self, contender: str) -> list[int]:
        """The last number of sessions before the first that is not within the objective, by trace."""
        return [self._capacity(contender, seed) for seed in self.plan.seeds]

    def closely(self, contender: str, world: str = BELIEVED) -> Outcome:
        """Of the shipped trace with `SHOWN` sessions."""
        wanted = Run(contender=contender, world=world)
        return next(one.outcome for one in self.ran if one.run == wanted)

    @property
    def best(self) -> str:
        """Who has the most sessions within the objective: the median trace. Of several the one that is least late."""
        return max(self.plan.contenders, key=lambda name: (median(self.capacities(name)), -self.late(name)))

    def _capacity(self, contender: str, seed: int) -> int:
        wanted = (contender, BELIEVED, seed)
        ran = [one for one in self.ran if (one.run.contender, one.run.world, one.run.seed) == wanted]
        within = takewhile(lambda one: one.outcome.late <= LATE_AT_MOST, ran)
        return max((one.run.sessions for one in within), default=0)


def run(plan: Plan, advance: Callable[[], None] = lambda: None) -> Results:
    """`advance` is called after each of `size(plan)` runs."""
    runs = list(_runs(plan))
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        parts = [pool.submit(simulate, each) for each in sorted(runs, key=lambda one: -one.sessions)]
        for _ in as_completed(parts):
            advance()
    found = {ran.run: ran for ran in (part.result() for part in parts)}
    return Results(plan=plan, ran=tuple(found[each] for each in runs))


def size(plan: Plan) -> int:
    return len(list(_runs(plan)))


def simulate(run: Run) -> Ran:
    world = WORLDS[run.world]
    simulation = Simulation(_trace(run.seed), run.sessions, CONTENDERS[run.contender], world).run()
    return Ran(run, outcome(simulation.jobs, simulation.busy_s / simulation.lasts_s, world.within))


def write(results: Results, file: Path = FILE) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.encode(results))


def load(file: Path = FILE) -> Results:
    return msgspec.json.decode(file.read_bytes(), type=Results)


def _runs(plan: Plan) -> Iterator[Run]:
    for world in plan.worlds:
        believed = world == BELIEVED
        for contender in plan.contenders:
            for seed in plan.seeds if believed else plan.compared:
                for sessions in plan.sessions if believed else (SHOWN,):
                    yield Run(contender=contender, world=world, seed=seed, sessions=sessions)


@cache
def _trace(seed: int) -> Trace:
    return read() if seed == SEED else draw(seed)
