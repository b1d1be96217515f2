"""Settings: flags over environment over a file over the defaults; what cannot be is named."""

from pathlib import Path
from typing import Any

import pytest

from cards.parallel import ParallelPlan
from ops.errors import BadSettings
from ops.settings import Settings, read


def toml(folder: Path, text: str) -> Path:
    file = folder / "keyframe.toml"
    file.write_text(text)
    return file


def test_flags_go_over_the_environment_over_the_file_over_the_defaults(tmp_path: Path) -> None:
    file = toml(tmp_path, "port = 1\nworkers = 1\nranks = 1\nthreads = 3\n")
    environ = {"KEYFRAME_PORT": "2", "KEYFRAME_WORKERS": "2", "PORT": "9"}

    settings = read({"port": 3, "data": None}, environ, file)

    assert (settings.port, settings.workers, settings.ranks, settings.threads) == (3, 2, 1, 3)
    assert settings.data == Settings().data


def test_without_anything_the_defaults_hold() -> None:
    assert read({}, {}) == Settings()


def test_words_become_what_a_setting_is() -> None:
    environ = {
        "KEYFRAME_DATA": "/some/where",
        "KEYFRAME_SILENT_S": "2.5",
        "KEYFRAME_FAMILIES": "a.b,c",
        "KEYFRAME_LOG_FORMAT": "json",
    }

    settings = read({"port": "0"}, environ)

    assert (settings.data, settings.silent_s, settings.port) == (Path("/some/where"), 2.5, 0)
    assert (settings.families, settings.log_format) == (("a.b", "c"), "json")


def test_a_file_lists_families_as_toml_does(tmp_path: Path) -> None:
    assert read({}, {}, toml(tmp_path, 'families = ["a.b", "c"]')).families == ("a.b", "c")


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("port", "port"),
        ("port", "65536"),
        ("port", "-1"),
        ("workers", "-1"),
        ("workers", "2000"),
        ("ranks", "0"),
        ("device", "gpu"),
        ("device", "cuda:x"),
        ("threads", "1.5"),
        ("max_active", ""),
        ("max_deaths", "0"),
        ("silent_s", "0"),
        ("silent_s", "nan"),
        ("grace_s", "soon"),
        ("memory_gib", "1e-12"),
        ("memory_gib", "1e300"),
        ("memory_gib", "inf"),
        ("batch_wait_s", "-1"),
        ("batch_wait_s", "inf"),
        ("log_level", "loud"),
        ("log_format", "xml"),
    ],
)
def test_a_value_that_cannot_be_names_its_setting(name: str, bad: str) -> None:
    with pytest.raises(BadSettings, match=name):
        read({}, {f"KEYFRAME_{name.upper()}": bad})
    with pytest.raises(BadSettings, match=name):
        read({name: bad}, {})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"prot = 8000", "unknown setting 'prot'; there are: data, store"),
        (b"[engine]\nport = 1", "unknown setting 'engine'"),
        (b"port = ", "is not TOML"),
        (b"host = '\xff'", "is not TOML"),
        (b"port = 'x'", "port"),
        (b"families = [1]", "families"),
    ],
)
def test_a_file_that_cannot_be_is_named(tmp_path: Path, text: bytes, says: str) -> None:
    file = tmp_path / "keyframe.toml"
    file.write_bytes(text)

    with pytest.raises(BadSettings, match=says):
        read({}, {}, file)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match=r"nowhere\.toml: No such file"):
        read({}, {}, tmp_path / "nowhere.toml")


@pytest.mark.parametrize("store", [None, ""])
def test_the_store_is_a_file_in_the_data_folder_unless_it_is_named(tmp_path: Path, store: Any) -> None:
    assert Settings(data=tmp_path, store=store).store_url == f"sqlite:///{tmp_path}/keyframe.db"
    assert Settings(data=tmp_path, store="memory://").store_url == "memory://"
    assert Settings(data=Path("here")).store_url == f"sqlite:///{Path.cwd()}/here/keyframe.db"


def test_blobs_lie_in_the_data_folder_unless_they_are_elsewhere(tmp_path: Path) -> None:
    assert Settings(data=tmp_path).blobs_url == f"{tmp_path}/blobs"
    assert read({}, {"KEYFRAME_BLOBS": "s3://bucket/prefix"}).blobs_url == "s3://bucket/prefix"


def test_a_mistyped_variable_is_named() -> None:
    with pytest.raises(BadSettings, match="KEYFRAME_WROKERS"):
        read({}, {"KEYFRAME_WROKERS": "2"})


def test_what_ranks_share_is_said_by_axis() -> None:
    settings = read({"ranks": 4}, {"KEYFRAME_PARALLEL": "cfg=2,ulysses=2"})

    assert settings.plan == ParallelPlan({"cfg": 2, "ulysses": 2})
    assert read({}, {}).plan is None


@pytest.mark.parametrize(
    ("parallel", "says"),
    [
        ("cfg", "parallel: cfg=2 is for 2 ranks and there are 4; set ranks to 2"),
        ("tensor=4", "parallel: 'tensor' is no axis"),
    ],
)
def test_ranks_that_cannot_share_so_are_named(parallel: str, says: str) -> None:
    with pytest.raises(BadSettings, match=says):
        read({"ranks": 4, "parallel": parallel}, {})


def test_a_policy_is_one_that_there_is() -> None:
    assert read({"policy": "fair", "batch_most": "8"}, {}).limits.batch_most == 8

    with pytest.raises(BadSettings, match=r"policy: .fastest. is none; there are: fifo, .*, deadline"):
        read({"policy": "fastest"}, {})
    with pytest.raises(BadSettings, match="batch_most"):
        read({"batch_most": "0"}, {})


def test_workers_are_of_one_role_each_where_they_are_split(tmp_path: Path) -> None:
    assert read({"workers": "2"}, {}).slots == ((), ())
    split = (("encoder",), ("encoder",), ("decoder",))
    assert read({}, {"KEYFRAME_SPLIT": "decoder=1,encoder=2"}).slots == split
    assert read({}, {}, toml(tmp_path, "serves = ['encoder']\n[split]\nencoder = 2\ndecoder = 1")).slots == split
    assert read({"serves": "encoder,decoder"}, {}).serves == ("encoder", "decoder")


@pytest.mark.parametrize(
    ("name", "bad"),
    [("split", "painter=1"), ("split", "encoder=x"), ("split", "encoder"), ("split", "encoder=-1"),
     ("serves", "painter"), ("listen_transfers", "ipc:///there")],
)  # fmt: skip
def test_a_role_that_there_is_not_names_its_setting(name: str, bad: str) -> None:
    with pytest.raises(BadSettings, match=name):
        read({name: bad}, {})
