"""Play all cells, or those of one place, and print what was seen of each."""

import argparse
import itertools
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.faults.cells import CELLS, MEANS, Cell
from tests.faults.place import opened
from tests.faults.run import SEEDS, Seen, play, undisturbed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument(
        "--only", metavar="WORD", default="", help="cells with this word: a target, a fault, a setup, idle, loaded"
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the logs of the processes here")
    asked = parser.parse_args()
    chosen = [(load, cell) for cell in CELLS for load in SEEDS if asked.only in cell.called(load)]
    with tempfile.TemporaryDirectory(prefix="faults-") as made:
        seen = [*played(chosen, asked.keep or Path(made))]
    for (target, fault), means in MEANS.items():
        sys.stdout.write(f"{target}, {fault}: {means}\n")
    unclean = sum(bool(one.problems) for one in seen)
    sys.stdout.write(f"{len(seen)} cells, {f'{unclean} with problems' if unclean else 'all as they should be'}\n")
    return int(bool(unclean))


def played(chosen: Iterable[tuple[str, Cell]], folder: Path) -> Iterable[Seen]:
    """One place for all cells that can be played there."""
    by_setup = sorted(chosen, key=lambda one: one[1].setup.name)
    for setup, cells in itertools.groupby(by_setup, key=lambda one: one[1].setup):
        with opened(setup, folder / setup.name) as place:
            made = undisturbed(place)
            for load, cell in cells:
                seen = play(place, cell, load, made)
                sys.stdout.writelines(f"{line}\n" for line in (seen, *(f"    {problem}" for problem in seen.problems)))
                sys.stdout.flush()
                yield seen


if __name__ == "__main__":
    sys.exit(main())
