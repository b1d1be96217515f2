"""What cannot be, said by real processes in one clear line."""

import os
from pathlib import Path

import pytest

from tests.processes import engine, run

pytestmark = pytest.mark.slow


def test_a_second_engine_on_the_same_store_is_refused_in_one_line(tmp_path: Path) -> None:
    with engine(tmp_path) as running:
        second = run("engine", "serve", "--data", tmp_path, "--port", 0)

        assert second.returncode == 1
        assert second.stderr.count("\n") == 1
        assert str(running.process.pid) in second.stderr
        assert running.http.get("/livez").is_success


def test_an_engine_that_cannot_say_where_it_is_ends_with_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "engine.json").mkdir()

    refused = run("engine", "serve", "--data", tmp_path, port=0, workers=0)

    assert refused.returncode == 1
    assert refused.stderr == f"error: cannot write {tmp_path}/engine.json: Is a directory\n"


def test_a_worker_with_another_blob_folder_is_refused_and_told_why(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/w"
    with engine(tmp_path, ready=False, workers=0, listen_workers=address):
        done = run("engine", "worker", "--connect", address, "--data", tmp_path / "elsewhere", threads=1)

    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "--data folder of the engine" in done.stderr


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"store": "mysql://somewhere/db"}, "names no store"),
        ({"store": "postgresql://127.0.0.1:1/none"}, "127.0.0.1"),
        ({"port": "port"}, "port"),
        ({"workers": -1}, "workers"),
        ({"families": "nowhere.to.be"}, "nowhere.to.be"),
        ({"data": "/proc/keyframe"}, "/proc/keyframe"),
        ({"listen_workers": "nonsense"}, "nonsense"),
    ],
)
def test_a_setting_that_cannot_be_is_one_clear_line(tmp_path: Path, settings: dict[str, object], says: str) -> None:
    done = run("engine", "serve", **{"data": tmp_path, "port": 0, **settings})

    assert done.returncode in (1, 2)
    assert says in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["engine", "generate", "a circle", "--guidance", "nan"], "guidance"),
        (["engine", "generate", "a circle", "--model", "toy", "--out", "x.png"], ".txt"),
        (["engine", "generate", os.fsdecode(b"a \xff circle")], "UTF-8"),
        (["engine", "worker", "--connect", "nonsense"], "nonsense"),
        (["engine-admin", "jobs", "cancel", "nope"], "there is no store"),
        (["engine-admin", "replay", "verify", "nope"], "there is no store"),
    ],
)
def test_a_command_that_cannot_be_is_one_clear_line_and_makes_nothing(
    tmp_path: Path, command: list[str], says: str
) -> None:
    done = run(*command, data=tmp_path / "data")

    assert done.returncode in (1, 2)
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "data" / "keyframe.db").exists()


def test_a_port_that_is_taken_is_one_clear_line(tmp_path: Path) -> None:
    with engine(tmp_path / "first") as running:
        port = str(running.http.base_url.port)
        done = run("engine", "serve", "--data", tmp_path / "second", "--port", port)

    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "choose another --port" in done.stderr
