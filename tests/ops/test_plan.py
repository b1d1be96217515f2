"""`engine models plan`: the sizes of published models, from configs and headers alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from ops import cli, models
from ops.settings import Settings
from tests import published

PARAMETERS = {"text_encoder": 5_680_910_336, "transformer": 1_418_996_800, "vae": 126_892_531}
"""As published."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Configs and headers as published; the weights themselves are holes."""
    root = tmp_path_factory.mktemp("published")
    return {
        "wan": published.write(root / "wan", published.wan(), published.WAN),
        "ltx2": published.write(root / "ltx2", published.ltx2(), published.LTX2),
        "flux2": published.write(root / "flux2", published.flux2(), published.FLUX2, is_distilled=True),
    }


@pytest.fixture
def data(tmp_path: Path, folders: dict[str, Path]) -> Path:
    """A data folder that has them registered. Gigabytes of holes are not read for their digest."""
    for model in (
        *(models.Model(name=name, folder=str(folder)) for name, folder in folders.items()),
        models.Model(name="causal", folder=str(folders["wan"]), options={"loop": "causal"}),
    ):
        models.put(Settings(data=tmp_path), model, replace=False)
    return tmp_path


def planned(data: Path, capsys: pytest.CaptureFixture[str], *words: str, model: str = "wan") -> Any:
    cli.main(["models", "plan", model, "--json", "--data", str(data), *words])
    return json.loads(capsys.readouterr().out)


def of(rows: list[dict[str, Any]], **which: str) -> dict[str, Any]:
    [found] = [row for row in rows if which.items() <= row.items()]
    return found


def test_the_sizes_of_the_published_model(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = planned(data, capsys, "--size", "832x480", "--frames", "81", "--steps", "50")

    denoise = of(told["loops"], node="denoise")
    latent = of(told["tensors"], node="denoise", tensor="latent")
    assert (latent["shape"], latent["dtype"], latent["bytes"]) == ([1, 16, 21, 60, 104], "float32", 8_386_560)
    assert denoise["bytes_per_step"] == of(told["tensors"], tensor="velocity")["bytes"] == 4_193_280
    assert denoise["bytes_per_snapshot"] == 33_546_240
    assert (denoise["steps"], denoise["snapshots"]) == (50, 7)
    assert denoise["steps"] * denoise["bytes_per_snapshot"] == pytest.approx(1.68e9, rel=0.01)
    assert denoise["steps"] * denoise["bytes_per_step"] == pytest.approx(210e6, rel=0.01)
    assert denoise["stored_bytes"] == 50 * 4_193_280 + 7 * 33_546_240


def test_what_is_resident_and_what_a_decode_holds(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = planned(data, capsys)

    assert (told["size"], told["frames"], told["steps"]) == ("832x480", 81, 50)
    assert of(told["components"], component="transformer")["resident_bytes"] == 2 * PARAMETERS["transformer"]
    assert told["weights_bytes"] == 2 * sum(PARAMETERS.values())
    cache = of(told["tensors"], tensor="cache")
    assert cache["bytes"] == pytest.approx(1.89e9, rel=0.01)
    assert cache["stored"] == 0
    frames = of(told["tensors"], tensor="frames")
    assert (frames["stored"], frames["stored_bytes"]) == (21, 81 * 480 * 832 * 3)
    assert told["peak_bytes"] > told["weights_bytes"] + 2 * cache["bytes"]


def test_work_grows_with_the_square_of_the_tokens(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = of(planned(data, capsys)["loops"], node="denoise")["tflop_per_step"]
    half = of(planned(data, capsys, "--frames", "41")["loops"], node="denoise")["tflop_per_step"]
    unguided = of(planned(data, capsys, "--guidance", "1")["loops"], node="denoise")["tflop_per_step"]

    assert whole == pytest.approx(2 * 282, rel=0.02)  # 32760 tokens: 78 in projections, 204 in attention to itself
    assert whole > 2.8 * half
    assert whole == 2 * unguided


def test_time_is_of_the_rate_that_is_given(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prior, given = planned(data, capsys), planned(data, capsys, "--tflops", "400")

    assert "a prior" in prior["basis"]
    assert "a prior" not in given["basis"]
    assert given["seconds"] == pytest.approx(prior["seconds"] * prior["tflops"] / 400)


@pytest.mark.parametrize(
    ("words", "told"),
    [(("--frames", "80"), "frames: 80"), (("--size", "big"), "size: 'big'"), (("--steps", "0"), "steps")],
)
def test_what_the_model_does_not_make_is_refused(
    data: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    with pytest.raises(SystemExit):
        planned(data, capsys, *words)

    assert told in capsys.readouterr().err


@pytest.mark.parametrize("rate", ["0", "-1", "nan", "inf", "x"])
def test_a_rate_that_is_none_is_refused(data: Path, capsys: pytest.CaptureFixture[str], rate: str) -> None:
    with pytest.raises(SystemExit) as ended:
        planned(data, capsys, "--tflops", rate)

    assert ended.value.code == 2


def test_a_plan_for_people_has_units(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["models", "plan", "wan", "--data", str(data)])

    out = capsys.readouterr().out
    assert [word for word in ("8.39 MB", "33.55 MB", "14.45 GB", "a prior") if word not in out] == []
