"""Run one scenario, or all kinds of them, and say in a line each what came of it."""

import argparse
import sys
import tempfile
from pathlib import Path

import anyio

from tests.chaos.scenario import Outcome, Scenario, run

ALL = (("sqlite", 1), ("postgres", 2), ("postgres", 3))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=70.0, help="of faults, each scenario")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", choices=("sqlite", "postgres"), help="one scenario on this store (default: all)")
    parser.add_argument("--engines", type=int, choices=(1, 2, 3), help="on the one store; SQLite has one")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the logs of the processes here")
    asked = parser.parse_args()
    if asked.store == "sqlite" and asked.engines not in (None, 1):
        parser.error("a SQLite file has one engine")
    ours = [(asked.store, asked.engines or (1 if asked.store == "sqlite" else 2))] if asked.store else ALL
    outcomes = [play(Scenario(store, engines, asked.seed, asked.seconds), asked.keep) for store, engines in ours]
    return int(any(outcome.problems for outcome in outcomes))


def play(scenario: Scenario, keep: Path | None) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="chaos-") as made:
        folder = Path(made)
        if keep is not None:
            folder = keep / f"{scenario.store}-{scenario.engines}"
            folder.mkdir(parents=True, exist_ok=True)
        outcome = anyio.run(run, scenario, folder)
    print(outcome, flush=True)
    if outcome.problems:
        print(*dict.fromkeys(outcome.problems), f"again: {scenario.again}", sep="\n    ", flush=True)
    return outcome


if __name__ == "__main__":
    sys.exit(main())
