"""What the documents say is so."""

import re
import tomllib
from pathlib import Path

from ops import lifecycle

ROOT = Path(__file__).parent.parent


def test_the_lifecycle_is_the_one_that_the_engine_obeys() -> None:
    assert lifecycle.FILE.read_text() == lifecycle.draw(), "run: python -m ops.lifecycle"


def test_every_dependency_is_explained() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    explained = (ROOT / "docs" / "dependencies.md").read_text()

    for dependency in named:
        assert f"**{re.split(r'[^a-z0-9-]', dependency)[0]}**" in explained, dependency


def test_links_between_documents_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
