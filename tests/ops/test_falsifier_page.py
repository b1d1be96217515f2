"""docs/scheduling.md says what came out of the falsifier's last run."""

from pathlib import Path

import msgspec
import pytest

from engine.scheduling.policy import DEFAULT
from ops.bench.falsifier import plots, sweep, tables, trace
from ops.bench.falsifier.real import Measured

PAGE = Path(__file__).parents[2] / "docs" / "scheduling.md"
PLOTS = PAGE.with_suffix("")


def test_the_page_has_the_tables_of_its_results() -> None:
    page = PAGE.read_text()

    assert tables.put(page, tables.tables(sweep.load(PLOTS / "results.json"))) == page, "run: make falsifier"


def test_the_results_are_of_all_that_is_compared() -> None:
    assert sweep.load(PLOTS / "results.json").plan == sweep.Plan(), "run: make falsifier"


def test_the_default_is_the_best_of_what_is_compared() -> None:
    assert sweep.load(PLOTS / "results.json").best == DEFAULT


@pytest.mark.parametrize("contender", [DEFAULT, "fair"])
def test_the_results_are_what_the_scheduler_comes_to(contender: str) -> None:
    ran = sweep.simulate(sweep.Run(contender=contender))

    assert ran in sweep.load(PLOTS / "results.json").ran, "run: make falsifier"


def test_the_page_has_what_was_measured() -> None:
    found = msgspec.json.decode((PLOTS / "real.json").read_bytes(), type=Measured)

    assert tables.real(found) in PAGE.read_text(), "run: python -m ops.bench.falsifier show"


def test_the_plots_are_those_of_the_results(tmp_path: Path) -> None:
    for file in plots.draw(sweep.load(PLOTS / "results.json"), trace.read(), tmp_path):
        assert file.read_text() == (PLOTS / file.name).read_text()
