"""A family is small: what docs/how-to/add-a-model.md shows a newcomer is under 150 lines, all of its folder."""

import re
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any

from cards import checkpoint
from cards.model import Model
from cards.registry import PIPELINES
from tests.parity import tiny_flux2

MOST_LINES = 150

OPTIONAL = {"sizes.py", "reference.py"}
"""Of protocols that a family can do without: `cards.sizes.Measurable` and `cards.family.Referenced`."""

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "add-a-model.md"


def lines() -> dict[str, int]:
    """Of each family of published checkpoints, by its folder. Every line counts, whatever is on it."""
    folders = {Path(str(import_module(module).__file__)).parent for module in PIPELINES.values()}
    return {
        folder.name: sum(
            len(file.read_text().splitlines()) for file in folder.rglob("*.py") if file.name not in OPTIONAL
        )
        for folder in folders
    }


def test_a_whole_family_is_under_150_lines() -> None:
    found = lines()

    assert min(found.values()) < MOST_LINES, found


def test_it_is_the_one_that_a_newcomer_is_shown() -> None:
    smallest = min(found := lines(), key=found.__getitem__)

    assert f"`cards/{smallest}/`" in PAGE.read_text()


def test_the_family_that_the_page_writes_opens_a_checkpoint() -> None:
    [code] = re.findall(r" *```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    page: dict[str, Any] = {}
    exec(textwrap.dedent(code), page)
    folder = tiny_flux2.flux2()

    sketch = page["open"](Model(name="sketch", folder=str(folder)), checkpoint.read(folder))

    sketch.card.validate()
    assert {spec.semantics for spec in sketch.card.loops.values()} == {*sketch.loops}
