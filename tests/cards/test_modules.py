"""Which class a part of a checkpoint is loaded by."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cards.checkpoint import Part
from cards.modules import class_of


class Installed(ModuleType):
    """transformers where every backend of its image processors is installed: each class is its own name."""

    def __getattr__(self, name: str) -> Any:
        return name


@pytest.mark.parametrize(
    ("named", "loaded"), [("CLIPImageProcessor", "CLIPImageProcessorPil"), ("CLIPVisionModel", "CLIPVisionModel")]
)
def test_an_image_is_resized_by_the_same_code_whatever_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: str, loaded: str
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", Installed("transformers"))

    part = Part(name="part", library="transformers", class_name=named, folder=tmp_path, files=())
    assert class_of(part) == loaded
