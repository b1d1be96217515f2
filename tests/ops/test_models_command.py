"""`engine models`: registering, looking, checking, and what is refused with nothing changed."""

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from cards.model import Model
from engine.clock import WallClock
from ops import models
from ops.doctor import examine
from ops.errors import BadSettings
from ops.settings import Settings
from tests.ops.command import Engine
from tests.parity import tiny, tiny_flux2, tiny_wan

WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"


@pytest.fixture
def engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Engine:
    return Engine(tmp_path / "data", capsys)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny.wan(), tmp_path / "tiny-wan"))


@pytest.fixture
def registered(engine: Engine, checkpoint: Path) -> Engine:
    assert engine.models("add", "wan", checkpoint).code == 0
    return engine


def test_a_checkpoint_is_shown_and_registered(engine: Engine, checkpoint: Path) -> None:
    ran = engine.models("add", "my-wan.1", checkpoint, "--precision", "bfloat16", "--option", "solver=flow_unipc")

    assert ran.code == 0, ran.err
    assert "WanTransformer3DModel" in ran.out
    assert "model_index.json of WanPipeline" in ran.out
    assert "restart them to serve my-wan.1" in ran.err
    [model] = models.read_models(Settings(data=engine.data))
    assert (model.name, model.root, model.precision) == ("my-wan.1", checkpoint, "bfloat16")
    assert model.options == {"solver": "flow_unipc"}
    assert "transformer/diffusion_pytorch_model.safetensors" in model.files


def test_what_is_served_is_what_was_registered(registered: Engine) -> None:
    family = models.families_of(Settings(data=registered.data))["wan"]

    shown = registered.models("show", "wan", "--json").json

    assert shown["card"] == family.card.digest
    assert shown["weights"] == family.weights_digest()


def test_what_is_added_is_told_to_programs_as_one_object(engine: Engine, checkpoint: Path) -> None:
    told = engine.models("add", "wan", checkpoint, "--json").json

    assert told["name"] == "wan"
    assert [one["component"] for one in told["components"]] == [
        "scheduler", "text_encoder", "tokenizer", "transformer", "vae",
    ]  # fmt: skip
    assert told["parameters"] == sum(one["parameters"] for one in told["components"]) > 80_000
    assert told["bytes"] > 4 * told["parameters"]


def test_the_card_is_shown_with_sizes_loops_and_parity(registered: Engine) -> None:
    shown = registered.models("show", "wan", "--json").json

    assert "832x480" in shown["size"]
    assert shown["frames"] == "81; one more than a multiple of 4, up to 81"
    assert [loop["semantics"] for loop in shown["loops"]] == [
        "wan.encode_text/1", "wan.unipc.cfg/1", "wan.decode_vae/1", "wan.render/1",
    ]  # fmt: skip
    assert shown["parity"] == "C1 with diffusers.WanPipeline, tolerance 0"
    assert "wan.unipc.cfg/1" in registered.models("show", "wan").out


@pytest.mark.parametrize("name", ["", "-", ".", "..", "a/b", "a b", "ä", "a" * 65, "shapes", "a\n"])
def test_a_name_that_cannot_be_is_refused(engine: Engine, checkpoint: Path, name: str) -> None:
    ran = engine.models("add", "--", name, checkpoint) if name == "-" else engine.models("add", name, checkpoint)

    assert ran.code == 2
    assert len(ran.err.splitlines()) == 1 or name == "-"
    assert engine.file is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--option", "solver=magic"), "'magic' is none of"),
        (("--option", "sampler=euler"), "options.sampler: there is none; there are: loop, solver"),
        (("--option", "loop=causal", "--option", "window=99"), "'99' is none of -1, 3, 4, 5, 6, 7, 8, 9, 10, 11"),
        (("--option", "loop=full", "--option", "loop=causal"), "option: 'loop' is given twice, as full and as causal"),
        (("--option", "solver=unipc", "--option", "solver=unipc"), "option: 'solver' is given twice"),
    ],
)
def test_an_option_that_cannot_be_is_refused(engine: Engine, checkpoint: Path, words: Any, told: str) -> None:
    ran = engine.models("add", "wan", checkpoint, *words)

    assert (ran.code, len(ran.err.splitlines())) == (2, 1)
    assert told in ran.err
    assert engine.file is None


def test_a_taken_name_is_refused_and_replaced_when_asked(registered: Engine, checkpoint: Path) -> None:
    before = registered.file

    refused = registered.models("add", "wan", checkpoint, "--precision", "float16")
    assert (refused.code, registered.file) == (2, before)
    assert "--replace" in refused.err

    assert registered.models("add", "wan", checkpoint, "--precision", "float16", "--replace").code == 0
    assert [model.precision for model in models.read_models(Settings(data=registered.data))] == ["float16"]


def test_a_directory_that_is_not_whole_is_refused_with_all_that_is_missing(engine: Engine, checkpoint: Path) -> None:
    (checkpoint / "vae" / "diffusion_pytorch_model.safetensors").unlink()
    shutil.rmtree(checkpoint / "tokenizer")

    ran = engine.models("add", "wan", checkpoint)

    assert (ran.code, len(ran.err.splitlines()), engine.file) == (2, 1, None)
    assert "vae: vae has a config and no safetensors" in ran.err
    assert "tokenizer: there is no folder tokenizer" in ran.err


@pytest.mark.parametrize(
    ("file", "field", "value"),
    [
        ("transformer/config.json", "patch_size", 2),
        ("transformer/config.json", "rope_max_seq_len", "x"),
        ("vae/config.json", "scale_factor_spatial", None),
    ],
)
def test_a_value_of_a_config_that_is_of_no_use_is_told_in_a_line(
    engine: Engine, checkpoint: Path, file: str, field: str, value: Any
) -> None:
    config = json.loads((checkpoint / file).read_text())
    (checkpoint / file).write_text(json.dumps(config | {field: value}))

    ran = engine.models("add", "wan", checkpoint)

    assert (ran.code, len(ran.err.splitlines()), engine.file) == (2, 1, None)
    assert "a value in its configs is of no use to WanPipeline" in ran.err


def test_a_stage_is_replaced_only_by_what_its_workflow_can_use(engine: Engine, checkpoint: Path) -> None:
    picture, clip = tiny_flux2.flux2(), tiny_wan.from_image()
    assert engine.models("add", "flux", picture).code == engine.models("add", "i2v", clip).code == 0
    assert engine.models("add", "story", "--option", "picture=flux", "--option", "clip=i2v").code == 0
    before = engine.file

    refused = engine.models("add", "flux", checkpoint, "--replace")

    assert (refused.code, engine.file) == (2, before)
    assert "'story': options.picture: 'flux' is no model that can be it" in refused.err
    assert engine.models("add", "flux", picture, "--precision", "bfloat16", "--replace").code == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--option", "picture=a", "--option", "clip=b", "--precision", "bfloat16"), "precision: a workflow has that"),
        ((), "DIR: name a checkpoint directory, or the stages of a workflow by --option"),
    ],
)
def test_what_a_workflow_cannot_have_is_refused(engine: Engine, words: tuple[str, ...], told: str) -> None:
    ran = engine.models("add", "story", *words)

    assert (ran.code, engine.file) == (2, None)
    assert told in ran.err


def test_a_pipeline_of_no_family_is_refused(engine: Engine, checkpoint: Path) -> None:
    index = checkpoint / "model_index.json"
    index.write_text(index.read_text().replace("WanPipeline", "NoPipeline"))

    ran = engine.models("add", "wan", checkpoint)

    assert (ran.code, len(ran.err.splitlines()), engine.file) == (2, 1, None)
    assert "NoPipeline is of no family here" in ran.err


def test_an_empty_folder_lists_nothing(engine: Engine) -> None:
    assert engine.models("list", "--json").json == []
    assert engine.models("show", "wan").code == 2


def test_a_check_says_which_file_differs(registered: Engine, checkpoint: Path) -> None:
    assert {row["state"] for row in registered.models("check", "wan", "--json").json} == {"same"}
    weights = checkpoint / "vae" / "diffusion_pytorch_model.safetensors"
    data, times = bytearray(weights.read_bytes()), weights.stat()
    data[-1] ^= 1
    weights.write_bytes(data)
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))  # as if nothing had happened

    ran = registered.models("check", "wan", "--json")

    assert ran.code == 1
    assert "vae/diffusion_pytorch_model.safetensors differs" in ran.err
    changed = [row["file"] for row in ran.json if row["state"] == "changed"]
    assert changed == ["vae/diffusion_pytorch_model.safetensors"]


def test_a_check_says_which_file_is_gone(registered: Engine, checkpoint: Path) -> None:
    (checkpoint / "vae" / "config.json").unlink()

    ran = registered.models("check", "wan", "--json")

    assert (ran.code, len(ran.err.splitlines())) == (1, 1)
    assert "vae/config.json is gone" in ran.err
    states = {row["file"]: (row["state"], row["problem"]) for row in ran.json}
    assert states["vae/config.json"] == ("missing", None)
    assert states["vae"] == ("broken", "vae: vae has weights and no config.json")
    assert states["vae/diffusion_pytorch_model.safetensors"] == ("same", None)


def test_a_check_shows_what_is_wrong_with_each_component(registered: Engine, checkpoint: Path) -> None:
    weights = checkpoint / WEIGHTS
    os.truncate(weights, weights.stat().st_size - 1)
    (checkpoint / "vae" / "config.json").write_text("{")

    ran = registered.models("check", "wan", "--json")

    assert (ran.code, len(ran.err.splitlines())) == (1, 1)
    rows = {row["file"]: row for row in ran.json}
    assert (rows[WEIGHTS]["component"], rows[WEIGHTS]["state"]) == ("transformer", "changed")
    assert f"has {weights.stat().st_size} bytes and should have" in rows[WEIGHTS]["problem"]
    assert rows["vae/config.json"]["problem"] == "vae: config.json: Input data was truncated"
    assert {row["state"] for file, row in rows.items() if file not in (WEIGHTS, "vae/config.json")} == {"same"}
    assert "should have" in registered.models("check", "wan").out


def test_a_check_of_a_directory_that_is_gone_says_so(registered: Engine, checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)

    ran = registered.models("check", "wan", "--json")

    assert (ran.code, len(ran.err.splitlines())) == (1, 1)
    assert "its directory is gone; restore it" in ran.err
    assert {row["state"] for row in ran.json} == {"missing"}


def test_a_file_that_was_touched_is_noticed_without_being_read(registered: Engine, checkpoint: Path) -> None:
    os.utime(checkpoint / "vae" / "config.json", ns=(1, 1))

    assert "vae/config.json" in registered.models("list", "--json").json[0]["problem"]
    assert registered.models("check", "wan").code == 0


async def test_the_doctor_names_a_file_that_changed(registered: Engine, checkpoint: Path) -> None:
    os.utime(checkpoint / "vae" / "config.json", ns=(1, 1))

    found = await examine(Settings(data=registered.data), WallClock())

    [finding] = [one for one in found if one.what == "model" and one.level == "note"]
    assert "vae/config.json changed after it was registered: engine models check wan" in finding.message


def test_a_removed_model_is_forgotten_and_its_files_stay(registered: Engine, checkpoint: Path) -> None:
    assert registered.models("remove", "wan").code == 0

    assert registered.models("list", "--json").json == []
    assert (checkpoint / "model_index.json").exists()
    assert registered.models("remove", "wan").code == 2


def test_several_at_once_lose_nothing(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path)
    names = [f"model-{n}" for n in range(12)]
    ready = threading.Barrier(len(names))

    def register(name: str) -> None:
        ready.wait()
        models.put(settings, Model(name=name, folder="/nowhere"), replace=False)

    threads = [threading.Thread(target=register, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(model.name for model in models.read_models(settings)) == sorted(names)


def test_a_name_that_was_taken_meanwhile_is_refused(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path)
    models.put(settings, Model(name="wan", folder="/one"), replace=False)

    with pytest.raises(BadSettings, match="is taken"):
        models.put(settings, Model(name="wan", folder="/two"), replace=False)

    assert [model.folder for model in models.read_models(settings)] == ["/one"]


def test_a_file_that_is_none_is_named(engine: Engine) -> None:
    engine.data.mkdir()
    (engine.data / "models.json").write_text("{")

    ran = engine.models("list")

    assert (ran.code, len(ran.err.splitlines())) == (2, 1)
    assert "models.json" in ran.err
