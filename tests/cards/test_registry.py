"""Families by name: what is not fit to serve is refused before any device is touched."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cards import registry
from cards.errors import InvalidCard, NoFamily, UnknownModel, UnusableModel
from cards.model import Model
from tests.toy import FAMILY

ModuleMaker = Callable[[str, str], str]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleMaker:
    """Writes a module that can be imported for as long as the test lasts."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, code: str) -> str:
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    return write


def test_families_are_found_by_the_name_of_their_card() -> None:
    families = registry.load(["tests.toy", "cards.shapes.family"])

    assert list(families) == ["toy", "shapes"]
    assert registry.find(families, "toy") is FAMILY


def test_an_unknown_model_is_told_of_those_there_are() -> None:
    with pytest.raises(UnknownModel, match="no model named 'wan'; this engine has: shapes, toy"):
        registry.find(registry.load(["tests.toy", "cards.shapes.family"]), "wan")


def test_a_model_that_cannot_be_opened_stops_no_other() -> None:
    broken = Model(name="wan", folder="/nowhere")
    clips = Model(name="story", folder="", options={"picture": "shapes", "clip": "wan"})

    families = registry.load(["tests.toy"], [clips, broken])

    assert list(families) == ["toy"]
    why = "/nowhere: is no directory; restore it, or engine models add wan DIR --replace, or engine models remove wan"
    assert families.unusable["wan"] == f"{why}; then start the engine again"
    assert families.unusable["story"] == f"its stage 'wan' cannot be used: {families.unusable['wan']}"
    for name in ("wan", "story"):
        with pytest.raises(UnusableModel, match=f"model '{name}' cannot be used: .*/nowhere: is no directory; restore"):
            registry.find(families, name)


def test_a_workflow_whose_options_fit_no_more_stops_no_other() -> None:
    families = registry.load(["tests.toy"], [Model(name="story", folder="", options={"picture": "toy"})])

    assert list(families) == ["toy"]
    assert "options.picture: 'toy' is no model that can be it" in families.unusable["story"]
    assert "engine models add story --option picture=NAME --option clip=NAME --replace" in families.unusable["story"]


def test_an_identity_names_card_and_weights_by_content() -> None:
    identity = registry.identity(FAMILY)

    assert (identity.name, identity.card, identity.weights) == ("toy", FAMILY.card.digest, "toy-weights")


@pytest.mark.parametrize("name", ["nowhere", "nowhere.to.be", "cards.nowhere", "tests.toy.family"])
def test_a_module_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(NoFamily, match="is no module") as caught:
        registry.load([name])

    assert caught.value.module == name


def test_a_module_without_a_family_is_named() -> None:
    with pytest.raises(NoFamily, match=r"'cards.shapes.card' has no FAMILY"):
        registry.load(["cards.shapes.card"])


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import nowhere", "No module named 'nowhere'"),
        ("import own", "No module named 'own'"),
        ("import os; os.nothing", "has no attribute 'nothing'"),
    ],
)
def test_a_family_that_cannot_be_imported_says_why_itself(module: ModuleMaker, code: str, error: str) -> None:
    with pytest.raises((ModuleNotFoundError, AttributeError), match=error):
        registry.load([module("own_family", code)])


def test_a_name_taken_twice_is_refused(module: ModuleMaker) -> None:
    second = module("second_toy", "from tests.toy import FAMILY")

    with pytest.raises(InvalidCard, match="taken twice, the second time by second_toy"):
        registry.load(["tests.toy", second])


def test_a_loop_that_no_code_runs_is_refused(module: ModuleMaker) -> None:
    code = "from tests.toy import ToyFamily; FAMILY = ToyFamily(); del FAMILY.loops['toy.count/1']"

    with pytest.raises(InvalidCard, match=r"no code here runs 'toy.count/1'") as caught:
        registry.load([module("half_a_toy", code)])

    assert caught.value.field == "loops.count.semantics"


def test_a_card_that_contradicts_itself_is_refused(module: ModuleMaker) -> None:
    code = (
        "from msgspec.structs import replace; from tests.toy import CARD, ToyFamily\n"
        "FAMILY = ToyFamily(replace(CARD, program=replace(CARD.program, nodes=())))"
    )

    with pytest.raises(InvalidCard, match=r"program\.nodes: is empty"):
        registry.load([module("empty_toy", code)])
