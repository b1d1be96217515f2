"""`python -m ops.bench.falsifier [simulate|show|real]`: whether scheduling by the step earns its keep.

`simulate` runs every policy on the traces in virtual time, and writes docs/scheduling/ and the tables of
docs/scheduling.md; `show` prints its tables; `real` replays the shipped trace against real engines, with the shapes
model on this machine.
"""

import argparse
import sys
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from engine.scheduling.policy import POLICIES
from ops.bench.falsifier import plots, real, sweep, tables
from ops.bench.falsifier.trace import read

PAGE = Path("docs/scheduling.md")

QUICK_S = 10.0
"""For real: only to see that it works."""

COLUMNS = (TextColumn("{task.description}"), BarColumn(40), MofNCompleteColumn(), TimeElapsedColumn())


def main(arguments: list[str]) -> None:
    asked = _parser().parse_args(arguments)
    match asked.part:
        case "simulate":
            _simulate(sweep.QUICK if asked.quick else sweep.Plan(), kept=not asked.quick)
        case "show":
            _show(sweep.load())
            if real.FILE.exists():
                print(tables.real(msgspec.json.decode(real.FILE.read_bytes(), type=real.Measured)))
        case "real":
            seconds = QUICK_S if asked.quick else asked.seconds
            _real(seconds, asked.sessions, asked.policies, kept=not asked.quick)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.falsifier", description=__doc__)
    parser.add_argument("part", nargs="?", choices=["simulate", "show", "real"], default="simulate")
    parser.add_argument("--quick", action="store_true", help="only to see that it works: writes nothing")
    parser.add_argument("--seconds", type=float, default=150.0, help="how long each policy is run for real")
    parser.add_argument("--sessions", type=int, default=2, help="of the trace, that are run for real")
    parser.add_argument("--policies", type=lambda names: names.split(","), default=list(POLICIES))
    return parser


def _simulate(plan: sweep.Plan, *, kept: bool) -> None:
    with _progress() as progress:
        bar = progress.add_task("simulated", total=sweep.size(plan))
        results = sweep.run(plan, lambda: progress.advance(bar))
    if kept:
        sweep.write(results)
        for file in plots.draw(results, read()):
            print(f"wrote {file}")
        PAGE.write_text(tables.put(PAGE.read_text(), tables.tables(results)))
        print(f"wrote the tables of {PAGE}; what is said of them is left to you")
    _show(results)


def _show(results: sweep.Results) -> None:
    print("", *tables.tables(results), sep="\n\n")


def _real(seconds: float, sessions: int, policies: list[str], *, kept: bool) -> None:
    with _progress() as progress:
        bar = progress.add_task("replayed", total=len(policies))
        found = real.run(seconds, sessions, policies, lambda: progress.advance(bar))
    if kept:
        real.FILE.write_bytes(msgspec.json.encode(found))
        print(f"wrote {real.FILE}")
    print(tables.real(found))


def _progress() -> Progress:
    return Progress(*COLUMNS, TimeRemainingColumn(), console=Console(stderr=True))


if __name__ == "__main__":
    main(sys.argv[1:])
