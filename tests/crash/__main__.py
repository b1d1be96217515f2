"""`python -m tests.crash [--at-most N] [SCENARIO...]` goes through the points of the scenarios and prints a report."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.crash.broken import BREAKS, broken
from tests.crash.harness import enumerate_points, enumerate_statements
from tests.crash.scenarios import ON_FILES, ON_POSTGRES
from tests.postgres import running_postgres


@contextmanager
def _server(url: str | None, *, needed: bool) -> Iterator[str]:
    if url is not None or not needed:
        yield url or ""
        return
    with running_postgres() as new_database:
        yield new_database()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join([*ON_FILES, *ON_POSTGRES])}")
    parser.add_argument("--at-most", type=int, metavar="N", help="an even sample of N kills and N power cuts of each")
    parser.add_argument("--broken", choices=BREAKS, help="break the store first, to see that it is found out")
    parser.add_argument("--server", metavar="URL", help="of a database on a running PostgreSQL, instead of a new one")
    options = parser.parse_args()
    names = options.scenarios or [*ON_FILES, *ON_POSTGRES]
    unclean = points = 0
    with _server(options.server, needed=not ON_POSTGRES.keys().isdisjoint(names)) as server:
        for name in names:
            scenario = (ON_FILES.get(name) or ON_POSTGRES[name])()
            if options.broken:
                scenario = broken(scenario, options.broken)
            if name in ON_FILES:
                report = enumerate_points(scenario, options.at_most)
            else:
                report = enumerate_statements(scenario, server, options.at_most)
            sys.stdout.write(f"{name}: {report}\n")
            sys.stdout.flush()
            points += report.kills + report.cuts
            unclean += len(report.unclean)
    sys.stdout.write(f"{points} points, {f'{unclean} unclean' if unclean else 'all clean'}\n")
    return 1 if unclean else 0


if __name__ == "__main__":
    sys.exit(main())
