"""`engine models plan`: the sizes of published models, from configs and headers alone."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from cards.errors import Unmeasured
from cards.request import GenerationRequest, resolve
from cards.shapes.family import FAMILY
from engine.plan import plan
from engine.scheduling.cost import CPU_FLOPS
from ops import cli, models
from ops.settings import Settings
from tests import published
from tests.holes import safetensors
from tests.parity import tiny_flux2, tiny_wan

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
    assert prior["tflops"] == CPU_FLOPS / 1e12, "as the scheduler predicts it"


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


def test_a_causal_clip_keeps_little_and_reads_its_window(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = planned(data, capsys, "--size", "832x480", "--frames", "81", model="causal")

    denoise, taken, shown = (of(told["loops"], kind=kind) for kind in ("denoise", "context", "decode"))
    assert (denoise["steps"], taken["steps"], shown["steps"]) == (28, 6, 7)
    assert (denoise["bytes_per_step"], taken["bytes_per_step"]) == (599_040, 0)
    assert denoise["stored_bytes"] == 28 * 599_040
    kv = of(told["tensors"], tensor="kv")
    assert (kv["bytes"], kv["stored"]) == (862_617_600, 0)
    assert kv["bytes"] == 4680 * 184_320
    assert denoise["held_bytes"] > 7 * kv["bytes"], "those of six chunks are read, those of the seventh made"
    assert denoise["tflop"] < 28 * denoise["tflop_per_step"], "a chunk costs more than the one before"


def test_two_stages_of_video_with_sound(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = planned(data, capsys, "--size", "1280x704", "--frames", "121", model="ltx2")

    base, refine = (of(told["loops"], node=node) for node in ("base", "refine"))
    assert (base["steps"], refine["steps"]) == (8, 3)
    assert of(told["tensors"], node="base", tensor="latent")["shape"] == [1, 16 * 11 * 20, 128]
    assert of(told["tensors"], node="refine", tensor="latent")["shape"] == [1, 16 * 22 * 40, 128]
    assert of(told["tensors"], node="refine", tensor="audio")["shape"] == [1, 126, 128]
    assert of(told["tensors"], tensor="text")["bytes"] * 2 == pytest.approx(15.7e6, rel=0.01)
    assert of(told["tensors"], tensor="waveform")["shape"] == [2, 240 * 501]
    assert of(told["components"], component="transformer")["resident_bytes"] == pytest.approx(37.8e9, rel=0.01)
    assert refine["tflop_per_step"] > 4 * base["tflop_per_step"]


def test_a_picture(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = planned(data, capsys, "--size", "1024x1024", model="flux2")

    denoise = of(told["loops"], node="denoise")
    assert (denoise["steps"], denoise["bytes_per_step"]) == (4, 4096 * 128 * 2)
    assert of(told["tensors"], tensor="image")["bytes"] == 1024 * 1024 * 3
    assert told["weights_bytes"] == pytest.approx(16e9, rel=0.01)


def test_a_workflow_is_the_sum_of_its_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stages = {"picture": tiny_flux2.flux2(distilled=True), "clip": tiny_wan.from_image()}
    for model in (
        *(models.Model(name=name, folder=str(folder)) for name, folder in stages.items()),
        models.Model(name="story", folder="", options={name: name for name in stages}),
    ):
        models.put(Settings(data=tmp_path), model, replace=False)
    asked = ("--size", "48x32", "--frames", "9")

    story = planned(tmp_path, capsys, *asked, model="story")
    picture = planned(tmp_path, capsys, "--size", "48x32", model="picture")
    clip = planned(tmp_path, capsys, *asked, model="clip")

    for field in ("weights_bytes", "stored_bytes"):
        assert story[field] == picture[field] + clip[field], field
    assert story["seconds"] == pytest.approx(picture["seconds"] + clip["seconds"])
    assert [row["node"] for row in story["loops"]] == [
        f"{stage}-{row['node']}" for stage, rows in (("picture", picture), ("clip", clip)) for row in rows["loops"]
    ]


def test_a_config_that_lacks_something_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = published.write(tmp_path / "copy", published.wan(), published.WAN)
    config = json.loads((copy / "transformer" / "config.json").read_text())
    del config["attention_head_dim"]
    (copy / "transformer" / "config.json").write_text(json.dumps(config))
    models.put(Settings(data=tmp_path), models.Model(name="wan", folder=str(copy)), replace=False)

    with pytest.raises(SystemExit):
        planned(tmp_path, capsys)

    assert "a config of its checkpoint has no 'attention_head_dim'" in capsys.readouterr().err


def test_a_weight_of_an_unknown_layer_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = published.write(tmp_path / "copy", published.flux2(), published.FLUX2, is_distilled=True)
    safetensors(copy / "transformer" / "diffusion_pytorch_model.safetensors", {"adapter.weight": ("BF16", [4, 4])})
    models.put(Settings(data=tmp_path), models.Model(name="flux2", folder=str(copy)), replace=False)

    with pytest.raises(SystemExit):
        planned(tmp_path, capsys, model="flux2")

    assert "adapter.weight is of no layer of Flux2Transformer2DModel that is known here" in capsys.readouterr().err


def test_a_family_that_does_not_say_its_sizes_is_told() -> None:
    request = resolve(GenerationRequest(model=FAMILY.card.name, prompt="any"), FAMILY.card, random.Random(0))

    with pytest.raises(Unmeasured, match="its family, 'shapes', does not say them"):
        plan(FAMILY, request)


@pytest.mark.parametrize("said", ["1e-320", "0", "-1", "nan", "inf", "1e10", "fast"])
def test_a_rate_that_no_device_has_is_refused_with_those_that_are_taken(
    said: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        planned(data, capsys, f"--tflops={said}")

    assert ended.value.code == 2
    assert f"argument --tflops: '{said}' is no number from 1e-06 to 1e+09" in capsys.readouterr().err


@pytest.mark.parametrize("said", ["1e-6", "1e9"])
def test_the_slowest_and_the_fastest_device_are_reckoned_with(
    said: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = planned(data, capsys, "--size", "832x480", "--frames", "5", "--tflops", said)

    assert told["seconds"] == pytest.approx(sum(row["tflop"] for row in told["loops"]) / float(said))


def test_a_size_that_cannot_be_is_told_as_by_every_command(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        planned(data, capsys, "--size", "33x1")

    assert ended.value.code == 2
    assert "size: 33x1: width and height must be multiples of 16" in capsys.readouterr().err
