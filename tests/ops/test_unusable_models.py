"""A registered model that cannot be opened any more: all else is served, and every command says what to do about it."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.clock import WallClock
from ops.cli import main
from ops.doctor import examine
from ops.settings import Settings
from tests.ops.admin import admin, settings_of
from tests.ops.command import Engine
from tests.parity import tiny, tiny_flux2, tiny_wan
from tests.processes import SHAPES, engine, until, worker

WEIGHTS = Path("transformer", "diffusion_pytorch_model.safetensors")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_wan.from_image(), tmp_path / "tiny-i2v"))


@pytest.fixture
def command(tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> Engine:
    """One model that will be broken, one that will not, and a workflow of both."""
    command = Engine(tmp_path / "data", capsys)
    assert command.models("add", "i2v", checkpoint).code == command.models("add", "flux", tiny_flux2.flux2()).code == 0
    assert command.models("add", "story", "--option", "picture=flux", "--option", "clip=i2v").code == 0
    return command


def cut(root: Path) -> str:
    os.truncate(root / WEIGHTS, 5000)
    return "transformer: diffusion_pytorch_model.safetensors"


def gone(root: Path) -> str:
    shutil.rmtree(root)
    return f"{root}: is no directory"


def unreadable_config(root: Path) -> str:
    (root / "tokenizer" / "tokenizer_config.json").write_text('{"model_max')
    return "tokenizer: tokenizer_config.json: "


def dangling(root: Path) -> str:
    """As in a cache of links whose contents were cleared."""
    (root / "tokenizer" / "tokenizer.json").unlink()
    (root / "tokenizer" / "tokenizer.json").symlink_to(root / "blobs" / "0")
    return "tokenizer: tokenizer has "


def of_no_use(root: Path) -> str:
    config = root / "transformer" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"patch_size": 2}))
    return "a value in its configs is of no use"


Damage = Callable[[Path], str]


@pytest.mark.parametrize("damage", [cut, gone, unreadable_config, dangling, of_no_use])
def test_it_is_listed_and_shown_with_the_reason_beside_those_that_are_whole(
    command: Engine, checkpoint: Path, damage: Damage
) -> None:
    assert [row["usable"] for row in command.models("list", "--json").json] == [True, True, True]

    reason = damage(checkpoint)

    rows = {row["name"]: row for row in command.models("list", "--json").json}
    assert {name: row["usable"] for name, row in rows.items()} == {"i2v": False, "flux": True, "story": False}
    assert reason in rows["i2v"]["problem"]
    assert "restore it, or engine models add i2v DIR --replace" in rows["i2v"]["problem"]
    assert rows["story"]["problem"] == f"its stage 'i2v' cannot be used: {rows['i2v']['problem']}"
    for name in ("i2v", "story"):
        shown = command.models("show", name, "--json")
        assert (shown.code, shown.json["problem"]) == (0, rows[name]["problem"])
    assert command.models("show", "flux").code == command.models("check", "flux").code == 0
    assert command.models("check", "i2v").code == 1


@pytest.mark.parametrize("name", ["i2v", "story"])
def test_what_needs_it_is_refused_before_anything_runs(command: Engine, checkpoint: Path, name: str) -> None:
    gone(checkpoint)

    for verb in ("plan", "parity"):
        ran = command.models(verb, name)
        assert (ran.code, len(ran.err.splitlines())) == (1, 1)
        assert f"model '{name}' cannot be used: " in ran.err
        assert f"{checkpoint}: is no directory; restore it" in ran.err
    assert not (command.data / "keyframe.db").exists()


def test_it_is_registered_again_over_the_broken_one(command: Engine, checkpoint: Path) -> None:
    gone(checkpoint)

    assert command.models("add", "i2v", tiny_wan.from_image(), "--replace").code == 0

    assert [row["usable"] for row in command.models("list", "--json").json] == [True, True, True]


def test_another_stage_of_its_workflow_may_be_registered_again(command: Engine, checkpoint: Path) -> None:
    gone(checkpoint)

    assert command.models("add", "flux", tiny_flux2.flux2(), "--precision", "bfloat16", "--replace").code == 0


def test_a_workflow_of_it_is_refused(command: Engine, checkpoint: Path) -> None:
    gone(checkpoint)

    ran = command.models("add", "other", "--option", "picture=flux", "--option", "clip=i2v")

    assert ran.code == 1
    assert "model 'i2v' cannot be used" in ran.err


def test_it_is_forgotten(command: Engine, checkpoint: Path) -> None:
    gone(checkpoint)

    assert command.models("remove", "story").code == command.models("remove", "i2v").code == 0

    assert [row["name"] for row in command.models("list", "--json").json] == ["flux"]


async def test_the_doctor_names_it_and_finds_the_others_well(command: Engine, checkpoint: Path) -> None:
    reason = gone(checkpoint)

    found = [one for one in await examine(Settings(data=command.data), WallClock()) if one.what == "model"]

    assert [one.message.split()[0] for one in found if one.level == "ok"] == ["shapes", "flux"]
    wrong = [one.message for one in found if one.level == "wrong"]
    assert [message.partition(" cannot")[0] for message in wrong] == ["model 'i2v'", "model 'story'"]
    assert all(reason in message for message in wrong)
    assert not [one for one in found if one.level == "note"]


def test_a_clip_of_it_is_refused_before_an_engine_starts(
    command: Engine, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone(checkpoint)

    with pytest.raises(SystemExit) as ended:
        main(["generate", "a cat", "--model", "i2v", "--out", "clip.mp4", "--data", str(command.data)])

    assert ended.value.code == 1
    assert "error: model 'i2v' cannot be used: " in capsys.readouterr().err


async def test_an_engine_and_its_workers_serve_without_it_and_its_jobs_wait(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, root = tmp_path / "data", Path(shutil.copytree(tiny.wan(), tmp_path / "tiny-wan"))
    command = Engine(data, capsys)
    assert command.models("add", "wan", root).code == 0
    with engine(data, families=SHAPES, workers=0, ready=False) as running:
        waiting = running.submit("a fox", "wan", size="32x16", frames=5, steps=1)
        running.terminate()
    whole = (root / WEIGHTS).read_bytes()
    cut(root)

    with engine(data, families=SHAPES) as running:
        other = running.ended(running.submit("a red circle", "shapes", steps=1))
        held_up = until(lambda: running.job(waiting)["held_up"], "the job to be left")
        refused = running.http.post("/v1/jobs", json={"model": "wan", "prompt": "a fox"})
        listed = running.http.get("/v1/models").json()
        paused = await admin(settings_of(data), "jobs", "pause", waiting)
        resumed = await admin(settings_of(data), "jobs", "resume", waiting)
        running.terminate()
    told = [line for line in running.log().splitlines() if "cannot be used" in line and "left in the log" not in line]
    forked = await admin(settings_of(data), "jobs", "fork", waiting, "--at-step", "0")

    assert other["status"] == "completed"
    assert held_up.startswith(f"model 'wan' cannot be used: {root}: transformer: ")
    assert "; restore it, or engine models add wan DIR --replace" in held_up
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "model_unusable")
    assert refused.json()["error"]["message"] == held_up
    assert [model["id"] for model in listed["data"]] == ["shapes"]
    assert listed["unusable"].keys() == {"wan"}
    assert paused.code == resumed.code == 0
    assert len(told) == 1, told
    assert "ERROR" in told[0]
    assert held_up in told[0]
    assert (forked.code, held_up in forked.err) == (1, True)

    (root / WEIGHTS).write_bytes(whole)
    with engine(data, families=SHAPES) as running:
        assert running.ended(waiting)["status"] == "completed"


def test_a_worker_with_a_folder_of_its_own_joins_without_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data, address = tmp_path / "data", f"ipc://{tmp_path}/workers"
    own = Engine(tmp_path / "own", capfd)
    assert own.models("add", "wan", shutil.copytree(tiny.wan(), tmp_path / "tiny-wan")).code == 0
    cut(tmp_path / "tiny-wan")

    settings = {"families": SHAPES, "workers": 0, "listen_workers": address}
    with (
        engine(data, ready=False, **settings) as running,
        worker(own.data, address, families=SHAPES, blobs=data / "blobs"),
    ):
        until(lambda: running.http.get("/readyz").is_success, "the worker to join")
        [joined] = running.http.get("/v1/workers").json()["data"]

    assert joined["models"] == ["shapes"]
    assert capfd.readouterr().err.count("ERROR   model 'wan' cannot be used: ") == 1
