"""A checkpoint directory: what is read off it without torch, and what is said of one that is not whole."""

import json
import os
import shutil
import struct
from pathlib import Path

import pytest

from cards import checkpoint, registry
from cards.checkpoint import Stamps
from cards.errors import BadCheckpoint
from cards.model import Model
from tests.holes import safetensors


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A pipeline of a module in two shards, a scheduler and a tokenizer."""
    root = tmp_path / "model"
    for part in ("transformer", "scheduler", "tokenizer"):
        (root / part).mkdir(parents=True)
    index = {
        "_class_name": "SomePipeline",
        "boundary_ratio": 0.5,
        "transformer": ["diffusers", "SomeTransformer"],
        "transformer_2": [None, None],
        "scheduler": ["diffusers", "SomeScheduler"],
        "tokenizer": ["transformers", "SomeTokenizer"],
    }
    (root / "model_index.json").write_text(json.dumps(index))
    (root / "scheduler" / "scheduler_config.json").write_text("{}")
    (root / "tokenizer" / "tokenizer_config.json").write_text("{}")
    (root / "tokenizer" / "vocab.json").write_text("{}")
    (root / "transformer" / "config.json").write_text('{"num_layers": 2}')
    shards = {"a": "diffusion_pytorch_model-00001-of-00002.safetensors"}
    shards["b"] = shards["a"].replace("00001", "00002", 1)
    safetensors(root / "transformer" / shards["a"], {"a": ("BF16", [4, 8])})
    safetensors(root / "transformer" / shards["b"], {"b": ("F32", [3])})
    index_file = root / "transformer" / "diffusion_pytorch_model.safetensors.index.json"
    index_file.write_text(json.dumps({"weight_map": shards}))
    return root


def shard(root: Path, number: int = 2) -> Path:
    return root / "transformer" / f"diffusion_pytorch_model-0000{number}-of-00002.safetensors"


def problem(root: Path) -> str:
    with pytest.raises(BadCheckpoint) as caught:
        checkpoint.read(root)
    return caught.value.problem


def test_parts_are_read_with_their_sizes_and_precisions(root: Path) -> None:
    found = checkpoint.read(root)

    transformer = found.parts["transformer"]
    assert list(found.parts) == ["transformer", "scheduler", "tokenizer"]
    assert (transformer.class_name, transformer.parameters, transformer.nbytes) == ("SomeTransformer", 35, 76)
    assert (transformer.precision, found.precision) == ("bfloat16", "bfloat16")
    assert transformer.config() == {"num_layers": 2}
    assert found.settings == {"boundary_ratio": 0.5}
    assert found.parts["scheduler"].parameters == 0


@pytest.mark.parametrize(
    ("gone", "says"),
    [
        ("tokenizer/vocab.json", "tokenizer: tokenizer has no vocabulary: one of tokenizer.json, *.model, vocab.json"),
        ("transformer/config.json", "transformer: transformer has weights and no config.json"),
        ("text_encoder/model.safetensors", "text_encoder: text_encoder has a config and no safetensors"),
    ],
)
def test_a_part_that_has_lost_what_it_is_made_of_is_no_part(root: Path, gone: str, says: str) -> None:
    (root / "text_encoder").mkdir()
    (root / "text_encoder" / "config.json").write_text("{}")
    safetensors(root / "text_encoder" / "model.safetensors", {"a": ("F32", [1])})
    index = json.loads((root / "model_index.json").read_text())
    (root / "model_index.json").write_text(json.dumps(index | {"text_encoder": ["transformers", "SomeEncoder"]}))
    checkpoint.read(root)
    (root / gone).unlink()

    assert says in problem(root)


def test_the_digest_is_of_the_content_and_not_of_the_place(root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere" / "deeper"
    shutil.copytree(root, elsewhere)

    here, there = (checkpoint.digest(checkpoint.read(one).stamps()) for one in (root, elsewhere))
    (elsewhere / "tokenizer" / "tokenizer_config.json").write_text("{ }")
    other = checkpoint.digest(checkpoint.read(elsewhere).stamps())

    assert here == there
    assert other != here


def test_a_file_that_looks_as_it_did_is_not_read_again(root: Path) -> None:
    read: list[tuple[str, int]] = []
    found = checkpoint.read(root)
    known = found.stamps(told=lambda file, nbytes: read.append((file.name, nbytes)))
    assert sum(nbytes for _, nbytes in read) == found.nbytes
    read.clear()
    os.utime(shard(root), ns=(1, 1))

    again = found.stamps(known, told=lambda file, nbytes: read.append((file.name, nbytes)))

    assert [name for name, _ in read] == [shard(root).name]
    assert checkpoint.digest(again) == checkpoint.digest(known)
    assert checkpoint.touched(root, known) == [f"transformer/{shard(root).name}"]


def test_a_changed_file_is_logged_by_name(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    known: Stamps = checkpoint.read(root).stamps()
    data = bytearray(shard(root).read_bytes())
    data[-1] ^= 1
    shard(root).write_bytes(data)
    os.utime(shard(root), ns=(1, 1))

    changed = checkpoint.read(root).stamps(known)

    assert checkpoint.digest(changed) != checkpoint.digest(known)
    assert f"{shard(root)} has changed since it was registered" in caplog.text


def test_a_missing_shard_is_named(root: Path) -> None:
    shard(root).unlink()

    assert f"transformer: diffusion_pytorch_model.safetensors.index.json names {shard(root).name}" in problem(root)


def test_a_truncated_file_is_named_with_its_sizes(root: Path) -> None:
    whole = shard(root).stat().st_size
    os.truncate(shard(root), whole - 1)

    assert problem(root) == f"transformer: {shard(root).name} has {whole - 1} bytes and should have {whole}"


@pytest.mark.parametrize(
    "data", [b"", b"\0" * 7, b"\xff" * 64, struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 1 << 60)]
)
def test_what_is_no_safetensors_file_is_named(root: Path, data: bytes) -> None:
    shard(root).write_bytes(data)

    assert shard(root).name in problem(root)


def test_all_that_is_missing_is_told_at_once(root: Path) -> None:
    shard(root).unlink()
    shutil.rmtree(root / "scheduler")
    (root / "tokenizer" / "tokenizer_config.json").unlink()

    told = problem(root)

    assert [part for part in ("transformer: ", "scheduler: ", "tokenizer: ") if part not in told] == []


def test_a_config_without_weights_is_not_whole(root: Path) -> None:
    for file in (root / "transformer").glob("*.safetensors*"):
        file.unlink()

    assert problem(root) == "transformer: transformer has a config and no safetensors"


def test_a_folder_of_another_layout_is_told_what_to_be(tmp_path: Path) -> None:
    assert "save_pretrained" in problem(tmp_path)
    assert problem(tmp_path / "nowhere") == "is no directory"
    (tmp_path / "wan.pth").touch()
    assert "wan.pth is another layout" in problem(tmp_path)


@pytest.mark.parametrize("index", ["", "[]", "{}", '{"_class_name": 3}', "{", '{"_class_name": "A"}'])
def test_an_index_of_nothing_is_refused(tmp_path: Path, index: str) -> None:
    (tmp_path / "model_index.json").write_text(index)

    assert problem(tmp_path)


def test_an_unknown_pipeline_is_told_of_those_there_are(root: Path) -> None:
    with pytest.raises(BadCheckpoint, match=r"SomePipeline is of no family here; there are .*WanPipeline"):
        registry.open_model(Model(name="m", folder=str(root)))


def test_of_several_variants_the_main_one_counts(root: Path) -> None:
    before = checkpoint.read(root).parts["transformer"]
    folder = root / "transformer"
    safetensors(folder / "diffusion_pytorch_model.fp16.safetensors", {"a": ("F16", [400])})
    half = json.dumps({"weight_map": {"a": "diffusion_pytorch_model.fp16.safetensors"}})
    (folder / "diffusion_pytorch_model.fp16.safetensors.index.json").write_text(half)

    part = checkpoint.read(root).parts["transformer"]

    assert {shard(root, 1), shard(root, 2)} <= {*part.files}
    assert (part.parameters, part.nbytes) == (before.parameters, before.nbytes)


def test_weights_that_are_pickled_only_are_no_weights(root: Path) -> None:
    for file in (root / "transformer").glob("*.safetensors*"):
        file.unlink()
    (root / "transformer" / "diffusion_pytorch_model.bin").write_bytes(b"pickled")

    assert "transformer has no safetensors, only diffusion_pytorch_model.bin" in problem(root)
