"""G1, G2, G4: fenced appends of 1 KB and a checkpoint of 1 KB, one job and sixteen, beside the peers and the floor."""

from contextlib import AsyncExitStack
from statistics import median

from ops.bench.store import raw
from ops.bench.store.goals import Goal, Outcome, at_least, at_most
from ops.bench.store.options import Options
from ops.bench.store.ours import Jobs
from ops.bench.store.peer import peer
from ops.bench.store.runs import Contender, Run, by_turns, fsync_probe, rates, ratio
from store.open import open_journal

JOBS = (1, 16)

FSYNC = "fsync of 4 KB"
FLOORS = {"sqlite": raw.sqlite, "postgres": raw.postgres}
PEERS = {"dbos steps": "dbos_steps", "eventsourcing": "eventsourcing_appends"}

Runs = dict[str, list[Run]]

OF_DBOS = {("sqlite", 1): 6, ("sqlite", 16): 30, ("postgres", 1): 5, ("postgres", 16): 40}
OF_EVENTSOURCING = {("sqlite", 1): 0.7, ("sqlite", 16): 5, ("postgres", 1): 2, ("postgres", 16): 15}
OF_THE_FLOOR = 0.7


async def run(options: Options) -> Outcome:
    outcome = Outcome([], [])
    for database in options.databases:
        runs = await _measure(options, database)
        outcome.figures += [rates(f"{database}: {name}", seen) for name, seen in runs.items()]
        outcome.goals += [goal for jobs in JOBS for goal in _goals(database, jobs, runs)]
    return outcome


async def _measure(options: Options, database: str) -> Runs:
    async with AsyncExitStack() as stack:
        journal = await stack.enter_async_context(open_journal(options.new_store(database)))
        contenders: dict[str, Contender] = {FSYNC: lambda: fsync_probe(options.data)}
        contenders |= {f"ours, {jobs}": Jobs(journal, jobs).contender(options.seconds) for jobs in JOBS}
        loops = stack.enter_context(FLOORS[database](options.new_store(database), JOBS))
        contenders |= {f"raw, {loop.group} a commit": loop.contender(options.seconds) for loop in loops}
        for name, program in PEERS.items() if options.peers else ():
            other = stack.enter_context(peer(program, options.new_store(database)))
            contenders |= {f"{name}, {jobs}": other.contender(jobs, options.seconds) for jobs in JOBS}
        await by_turns(contenders, 1)  # warms up
        return await by_turns(contenders, options.rounds)


def _goals(database: str, jobs: int, runs: Runs) -> list[Goal]:
    goal = "G1" if jobs > 1 else "G2"
    ours = runs[f"ours, {jobs}"]
    what = f"append on {database}, {jobs} at once: "

    def of(name: str) -> float | None:
        return ratio(ours, runs[name]) if name in runs else None

    goals = [
        at_least(goal, f"{what}of DBOS steps", of(f"dbos steps, {jobs}"), OF_DBOS[database, jobs]),
        at_least(goal, f"{what}of eventsourcing", of(f"eventsourcing, {jobs}"), OF_EVENTSOURCING[database, jobs]),
    ]
    if jobs == 1:
        probe = median(run.quantile_ms(0.5) for run in runs[FSYNC])
        return [*goals, at_most(goal, f"{what}p50, fsync + 0.25 ms", _p50(ours), probe + 0.25, "ms")]
    cpu = median(run.cpu_us for run in ours)
    commits = median(1 / run.group for run in ours)
    return [
        *goals,
        at_least(goal, f"{what}of the raw loop", of(f"raw, {jobs} a commit"), OF_THE_FLOOR),
        at_most("G4", f"{what}process CPU an append", cpu, 60, "us"),
        at_most("G4", f"{what}commits an append", commits, 1, "commits"),
    ]


def _p50(runs: list[Run]) -> float:
    return median(run.quantile_ms(0.5) for run in runs)
