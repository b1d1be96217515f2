"""docs/scheduling.md says what came out of the falsifier's last run."""

from pathlib import Path

import msgspec

from ops.bench.falsifier import plots, sweep, tables, trace
from ops.bench.falsifier.real import Measured

PAGE = Path(__file__).parents[2] / "docs" / "scheduling.md"
PLOTS = PAGE.with_suffix("")


def test_the_page_has_the_tables_of_its_results() -> None:
    page = PAGE.read_text()

    for table in tables.tables(sweep.load(PLOTS / "results.json")):
        assert table in page, "run: python -m ops.bench.falsifier show"


def test_the_page_has_what_was_measured() -> None:
    for file in PLOTS.glob("real.json"):
        found = msgspec.json.decode(file.read_bytes(), type=Measured)
        assert tables.real(found) in PAGE.read_text(), "run: python -m ops.bench.falsifier show"


def test_the_plots_are_those_of_the_results(tmp_path: Path) -> None:
    for file in plots.draw(sweep.load(PLOTS / "results.json"), trace.read(), tmp_path):
        assert file.read_text() == (PLOTS / file.name).read_text()
