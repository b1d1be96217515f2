"""G3: how long the slowest appends take while the write-ahead log is moved into the file behind them."""

from ops.bench.store.goals import Outcome, at_most
from ops.bench.store.options import Options
from ops.bench.store.ours import Jobs
from ops.bench.store.runs import rates
from store.open import open_journal

JOBS = 16
P99_MS = 10


async def run(options: Options) -> Outcome:
    outcome = Outcome([], [])
    for database in options.databases:
        async with open_journal(options.new_store(database)) as journal:
            seen = await Jobs(journal, JOBS).run(options.tail_s)
        what = f"{database}: {JOBS} jobs for {options.tail_s:g} s"
        outcome.figures.append(rates(what, [seen]))
        outcome.goals.append(at_most("G3", f"p99 of appends, {what}", seen.quantile_ms(0.99), P99_MS, "ms"))
    return outcome
