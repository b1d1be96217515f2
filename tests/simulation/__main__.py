"""Run seeds: one with its trace, or many with a line of progress."""

import argparse
import multiprocessing
import os
import sys
import time
from functools import partial

from tests.simulation.world import Report, simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one, and say what came of it")
    parser.add_argument("--trace", action="store_true", help="with --seed: print everything that happens")
    parser.add_argument("--seeds", type=int, default=300, help="how many to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--engines", type=int, default=1, help="engines on the one store")
    parser.add_argument("--cores", type=int, default=os.cpu_count())
    asked = parser.parse_args()
    if asked.seed is not None:
        report = simulate(asked.seed, engines=asked.engines, show=print if asked.trace else None)
        print(*report.problems, sep="\n")
        print(f"seed {report.seed}: {report.events} events, at rest after {report.rest_s:.1f} s, {report.digest}")
        return bool(report.problems)
    return many(range(asked.first, asked.first + asked.seeds), asked.engines, asked.cores)


def many(seeds: range, engines: int, cores: int) -> int:
    """Returns 1 if one of them failed."""
    failed = events = 0
    began = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        for done, report in enumerate(pool.imap_unordered(partial(simulate, engines=engines), seeds, 4), 1):
            events += report.events
            failed += bool(report.problems)
            if report.problems:
                complain(report)
            if done % 50 == 0 or done == len(seeds):
                rate = done / (time.monotonic() - began)
                print(f"\r{done}/{len(seeds)} seeds, {failed} failed, {events} events, {rate:.0f} seeds/s", end="")
                sys.stdout.flush()
    print()
    return bool(failed)


def complain(report: Report) -> None:
    print(f"\nseed {report.seed} failed:", *report.problems[:5], report.again, sep="\n    ")


if __name__ == "__main__":
    sys.exit(main())
