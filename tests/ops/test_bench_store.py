"""The benchmark of the store runs, without its peers and without a claim about any figure."""

import subprocess
import sys

import pytest

from ops.bench.processes import ROOT


@pytest.mark.slow
def test_every_part_of_the_benchmark_runs_and_says_which_goals_it_looked_at() -> None:
    command = [sys.executable, "-m", "ops.bench.store", "--quick"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 0, done.stderr
    first_words = {line.split()[0] for line in done.stdout.splitlines() if line.strip()}
    assert {"G1", "G2", "G3", "G4", "G6", "G7", "G9", "G10"} <= first_words
