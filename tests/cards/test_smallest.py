"""A family is small: of the one that docs/how-to/add-a-model.md shows a newcomer, what a family must have is under 150
lines, and the whole folder under 270.
"""

import re
import textwrap
from collections.abc import Set
from importlib import import_module
from pathlib import Path
from typing import Any

from cards import checkpoint
from cards.model import Model
from cards.registry import PIPELINES
from tests.parity import tiny_flux2

MOST_LINES = 150
MOST_WITH_OPTIONAL = 270

OPTIONAL = {"sizes.py", "reference.py"}
"""Of protocols that a family can do without: `cards.sizes.Measurable` and `cards.family.Referenced`."""

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "add-a-model.md"


def folders() -> list[Path]:
    """Of the families of published checkpoints."""
    return [*{Path(str(import_module(module).__file__)).parent for module in PIPELINES.values()}]


def lines(folder: Path, but_for: Set[str] = frozenset()) -> int:
    """Every line counts, whatever is on it."""
    return sum(len(file.read_text().splitlines()) for file in folder.rglob("*.py") if file.name not in but_for)


def smallest() -> Path:
    return min(folders(), key=lambda folder: lines(folder, but_for=OPTIONAL))


def test_what_a_family_must_have_is_under_150_lines() -> None:
    assert lines(smallest(), but_for=OPTIONAL) < MOST_LINES


def test_the_whole_folder_is_under_270_lines() -> None:
    assert lines(smallest()) < MOST_WITH_OPTIONAL


def test_it_is_the_one_that_a_newcomer_is_shown() -> None:
    page = " ".join(PAGE.read_text().split())

    assert f"`cards/{smallest().name}/`" in page
    assert f"under {MOST_LINES} lines there" in page
    assert f"is under {MOST_WITH_OPTIONAL}." in page


def test_the_family_that_the_page_writes_opens_a_checkpoint() -> None:
    [code] = re.findall(r" *```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    page: dict[str, Any] = {}
    exec(textwrap.dedent(code), page)
    folder = tiny_flux2.flux2()

    sketch = page["open"](Model(name="sketch", folder=str(folder)), checkpoint.read(folder))

    sketch.card.validate()
    assert {spec.semantics for spec in sketch.card.loops.values()} == {*sketch.loops}
