"""`python -m ops.bench.store [PART ...]`: the store and the engine beside their peers, and which goals are met."""

import argparse
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import anyio
import msgspec

from ops.bench.measure import machine
from ops.bench.store import appends, dispatch, flat, pipeline, recovery, steps, tail
from ops.bench.store.goals import Goal, Outcome
from ops.bench.store.options import Options, stores
from ops.bench.store.peer import PYTHON, installed
from ops.tables import show

PARTS: dict[str, Callable[[Options], Awaitable[Outcome]]] = {
    "appends": appends.run,
    "tail": tail.run,
    "flat": flat.run,
    "steps": steps.run,
    "recovery": recovery.run,
    "pipeline": pipeline.run,
    "dispatch": dispatch.run,
}


def main() -> None:
    arguments = _parser().parse_args()
    arguments.peers = arguments.peers and not arguments.quick
    if arguments.peers and not installed():
        raise SystemExit(f"error: no peers at {PYTHON}: `make bench-store` installs them; --no-peers goes without")
    anyio.run(_run, arguments, backend_options={"use_uvloop": True})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.store", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help=f"of {', '.join(PARTS)}; all if left out")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="without DBOS and eventsourcing")
    parser.add_argument("--databases", default="sqlite,postgres", help="comma-separated")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.8, help="of one contender in one round")
    parser.add_argument("--tail-seconds", type=float, default=20.0, help="of the run whose p99 is looked at")
    parser.add_argument("--events", type=int, default=1_000_000, help="in the store that is compared to an empty one")
    parser.add_argument("--quick", action="store_true", help="only to see that it works: seconds, no peers, no figures")
    return parser


async def _run(arguments: argparse.Namespace) -> None:
    parts = arguments.parts or list(PARTS)
    print(f"machine: {machine()}")
    print(f"command: python -m ops.bench.store {' '.join(sys.argv[1:])}\n")
    goals: list[Goal] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        databases = tuple(arguments.databases.split(","))
        with stores(Path(folder), databases) as new_store:
            options = _options(arguments, Path(folder), databases, new_store)
            for part in parts:
                outcome = await PARTS[part](options)
                _show(outcome.figures)
                goals += outcome.goals
    _show(goals)


def _options(
    arguments: argparse.Namespace, data: Path, databases: tuple[str, ...], new_store: Callable[[str], str]
) -> Options:
    quick = arguments.quick
    return Options(
        data=data,
        new_store=new_store,
        databases=databases,
        peers=arguments.peers,
        rounds=1 if quick else arguments.rounds,
        seconds=0.1 if quick else arguments.seconds,
        tail_s=0.5 if quick else arguments.tail_seconds,
        events=2_000 if quick else arguments.events,
        quick=quick,
    )


def _show(lines: Sequence[msgspec.Struct]) -> None:
    if lines:
        show([msgspec.structs.asdict(line) for line in lines], as_json=False)
        print()


if __name__ == "__main__":
    main()
