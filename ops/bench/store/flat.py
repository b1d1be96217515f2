"""G6: an append takes as long late in a job as early, and in a full store as in an empty one."""

from time import perf_counter

from ops.bench.measure import figure
from ops.bench.store.filling import fill
from ops.bench.store.goals import Outcome, at_most
from ops.bench.store.options import Options
from ops.bench.store.ours import step
from ops.bench.store.runs import Run
from store.journal import Journal
from store.open import open_journal

EARLY, LATE = 100, 100_000
OF_A_JOB = 1000
APPENDS = 400

Place = tuple[Journal, str, int]


async def run(options: Options) -> Outcome:
    outcome = Outcome([], [])
    late = 1_000 if options.quick else LATE
    for database in options.databases:
        empty, full = options.new_store(database), options.new_store(database)
        await fill(empty, {"job/early": (1, EARLY - 1), "job/late": (1, late - 1)})
        await fill(full, {"job/early": (1, EARLY - 1), "job/other": (options.events // OF_A_JOB, OF_A_JOB)})
        async with open_journal(empty) as one, open_journal(full) as other:
            places = [(one, "job/early0", EARLY), (one, "job/late0", late), (other, "job/early0", EARLY)]
            seen = await _by_turns(places, 20 if options.quick else APPENDS)
        names = (f"event {EARLY} of a job", f"event {late:,}", f"event {EARLY}, {options.events:,} in the store")
        outcome.figures += [
            figure(f"{database}: append of {name}", [1e3 * one for one in run.took_s], "ms", 2)
            for name, run in zip(names, seen, strict=True)
        ]
        early, later, among = (run.quantile_ms(0.5) for run in seen)
        outcome.goals += [
            at_most("G6", f"append on {database}: event {late:,} of a job to event {EARLY}", later / early, 1.2),
            at_most("G6", f"append on {database}: {options.events:,} events stored to none", among / early, 1.5),
        ]
    return outcome


async def _by_turns(places: list[Place], count: int) -> list[Run]:
    runs = [Run([], 1.0) for _ in places]
    for n in range(count):
        for (journal, stream, version), run in zip(places, runs, strict=True):
            began = perf_counter()
            await journal.append(step(stream, version - 1 + n))
            run.took_s.append(perf_counter() - began)
    return runs
