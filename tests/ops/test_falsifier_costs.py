"""What the falsifier takes steps to cost is what the plans of the published models say."""

from pathlib import Path

import pytest

from ops.bench.falsifier.kinds import KINDS, WEIGHTS_GB, Part
from tests.ops.test_plan import data, folders, planned

__all__ = ["data", "folders"]

MODELS = {"klein": "flux2", "student": "student", "ltx2": "ltx2", "wan": "wan"}
"""Where the weights of each are among those of the plan's tests."""


@pytest.fixture
def student(data: Path, folders: dict[str, Path]) -> Path:
    from ops import models
    from ops.settings import Settings

    model = models.Model(name="student", folder=str(folders["wan"]), options={"recipe": "dmd"})
    models.put(Settings(data=data), model, replace=False)
    return data


@pytest.mark.parametrize("kind", KINDS)
def test_work_and_memory_of_steps(student: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    about = KINDS[kind]
    size, _, frames = about.shape.rpartition("x") if about.shape.count("x") == 2 else (about.shape, "", "")
    told = planned(
        student, capsys, "--size", size, *(["--frames", frames] if frames else []), model=MODELS[about.model]
    )

    for part in about.parts:
        [row] = [row for row in told["loops"] if row["node"] in (part.node, f"{part.node}_video")]
        assert part.tflop == pytest.approx(row["tflop_per_step"], rel=0.03), part.node
        assert part.held_gb == pytest.approx(row["held_bytes"] / 1e9, rel=0.05, abs=0.01), part.node
        assert part.steps == row["steps"] or _is_four_step(kind, part), part.node
    assert WEIGHTS_GB[about.model] == pytest.approx(told["weights_bytes"] / 1e9, rel=0.01)


def _is_four_step(kind: str, part: Part) -> bool:
    """The published student has three steps; this one is as those of self forcing are."""
    return kind in ("draft", "clip") and (part.node, part.steps) == ("denoise", 4)
