"""`engine models plan`: the sizes of the published Wan 2.1 1.3B, from configs and headers alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from ops import cli, models
from ops.settings import Settings
from tests.holes import safetensors

PARAMETERS = {"text_encoder": 5_680_910_336, "transformer": 1_418_996_800, "vae": 126_892_531}
"""As published."""

CONFIGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "tokenizer": ("transformers", "T5Tokenizer", {}),
    "text_encoder": (
        "transformers", "UMT5EncoderModel",
        {"d_model": 4096, "d_kv": 64, "d_ff": 10240, "num_layers": 24, "num_heads": 64, "vocab_size": 256384},
    ),
    "transformer": (
        "diffusers", "WanTransformer3DModel",
        {
            "patch_size": [1, 2, 2], "num_attention_heads": 12, "attention_head_dim": 128, "in_channels": 16,
            "out_channels": 16, "text_dim": 4096, "ffn_dim": 8960, "num_layers": 30,
        },
    ),
    "vae": (
        "diffusers", "AutoencoderKLWan",
        {
            "base_dim": 96, "z_dim": 16, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 2,
            "temperal_downsample": [False, True, True],
        },
    ),
    "scheduler": ("diffusers", "UniPCMultistepScheduler", {}),
}  # fmt: skip

FILES = {"scheduler": "scheduler_config.json", "tokenizer": "tokenizer_config.json"}


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """Configs and headers as published; the weights themselves are holes."""
    root = tmp_path / "wan"
    for name, (_, _, config) in CONFIGS.items():
        (root / name).mkdir(parents=True)
        (root / name / FILES.get(name, "config.json")).write_text(json.dumps(config))
    for name, count in PARAMETERS.items():
        file = "model.safetensors" if name == "text_encoder" else "diffusion_pytorch_model.safetensors"
        safetensors(root / name / file, {"weight": ("BF16", [count])})
    index: dict[str, Any] = {name: [library, kind] for name, (library, kind, _) in CONFIGS.items()}
    (root / "model_index.json").write_text(json.dumps({"_class_name": "WanPipeline"} | index))
    return root


@pytest.fixture
def data(tmp_path: Path, published: Path) -> Path:
    """A data folder that has it registered. Fourteen gigabytes of holes are not read for their digest."""
    data = tmp_path / "data"
    models.put(Settings(data=data), models.Model(name="wan", folder=str(published)), replace=False)
    return data


def planned(data: Path, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    cli.main(["models", "plan", "wan", "--json", "--data", str(data), *words])
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
