"""G8: a hundred jobs going again after kill -9, whatever lies behind them."""

from statistics import median

from ops.bench.measure import figure
from ops.bench.recovery import JOBS, times
from ops.bench.store.goals import Outcome, at_most
from ops.bench.store.options import Options

GOING_S = 0.5
BEHIND = (20, 500)


async def run(options: Options) -> Outcome:
    if options.quick:
        return Outcome([], [])
    seen = {steps: (await times(options.data / "recovery", steps, options.rounds))[1] for steps in BEHIND}
    short, long = (median(one) for one in seen.values())
    what = f"{JOBS} jobs, from process start to a new step of each"
    return Outcome(
        [figure(f"{what}, {steps} steps behind", [1e3 * s for s in took], "ms", 0) for steps, took in seen.items()],
        [
            at_most("G8", f"{what}, {BEHIND[0]} steps behind", short, GOING_S, "s"),
            at_most("G8", f"the same, {BEHIND[1]} steps behind to {BEHIND[0]}", long / short, 1.2),
        ],
    )
