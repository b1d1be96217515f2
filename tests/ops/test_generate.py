"""`engine generate`: what it sends, and what it refuses before any engine starts."""

import os
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from cards.card import InputSpec
from ops import cli
from ops.generate import generate, unfinished
from ops.remote import connect
from ops.settings import Settings
from ops.whereabouts import Whereabouts, announced
from tests.api.serving import app_of, served
from tests.api.test_http_inputs import MOVING, SIZED, png
from tests.processes import run
from tests.sim import World, request
from tests.toy import ToyFamily


@pytest.mark.parametrize(
    ("image", "code", "words"),
    [("nowhere.png", 2, "image: cannot read"), ("text.png", 2, "image: is no image that can be read")],
)
def test_an_image_that_is_none_is_named_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], image: str, code: int, words: str
) -> None:
    (tmp_path / "text.png").write_text("no picture")

    with pytest.raises(SystemExit) as ended:
        cli.main(["generate", "a cat", "--image", str(tmp_path / image), "--data", str(tmp_path / "data")])

    told = capsys.readouterr().err
    assert (ended.value.code, len(told.splitlines())) == (code, 1)
    assert words in told
    assert not (tmp_path / "data").exists()


async def test_what_comes_along_is_sent(tmp_path: Path) -> None:
    asked = {"model": "moving", "prompt": "a count", "seed": 1, "size": "64x64", "frames": 5}

    async with World(families=(ToyFamily(MOVING),)).engine(workers=0) as running, served(app_of(running)) as url:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(generate, asked, tmp_path / "clip.mp4", Settings(data=tmp_path), url, png())
            while not (rows := await running.client.jobs()):
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        job = await running.client.job(rows[0].id)

    assert (job.request.size, job.request.frames) == ("64x64", 5)
    assert job.outputs["request.image"].shape == (2, 4, 3)


async def test_looking_for_an_engine_leaves_the_event_loop_to_others(tmp_path: Path) -> None:
    """The engine that answers here is a task of the same loop."""
    settings = Settings(data=tmp_path, families=("tests.toy",))

    async with World().engine(workers=0) as running, served(app_of(running)) as url:
        with announced(tmp_path, Whereabouts(os.getpid(), url, settings.store_name)), anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(generate, {"model": "toy", "prompt": "a count"}, None, settings, None)
                while not await running.client.jobs():
                    await anyio.sleep(0.01)
                tasks.cancel_scope.cancel()


GOES_ON = replace(SIZED, name="toy", inputs={"x": InputSpec(kind="output", output="count.x", required=False)})


async def test_a_job_that_goes_on_from_another_is_found_again_by_the_same_words() -> None:
    async with World(families=(ToyFamily(GOES_ON),)).engine() as running, served(app_of(running)) as url:
        first = await running.ended((await running.client.submit(request())).id)
        running.workers[0].frozen = True
        asked = {"model": "toy", "prompt": "a count", "frames": 13, "continues": first.id}
        async with connect(url, elsewhere=True) as remote:
            job = await remote.submit(asked)
            again = await unfinished(remote, asked | {"inputs": {}})
            other = await unfinished(remote, {"model": "toy", "prompt": "a count", "inputs": {}})

    assert again is not None
    assert (again["id"], list(again["inputs"])) == (job["id"], ["x"])
    assert other is None


@pytest.mark.parametrize(
    ("flag", "value", "problem"),
    [
        ("--continues", "JOB", "continues: no job 'JOB'; give the id of one that is completed"),
        ("--interceptor", "step_skip=0.1", "interceptors.step_skip: toy has none such enabled; there are: none"),
    ],
)
def test_what_to_go_on_from_and_how_far_to_reuse_come_to_the_model(
    tmp_path: Path, flag: str, value: str, problem: str
) -> None:
    done = run("engine", "generate", "a cat", "--model", "toy", "--data", tmp_path, flag, value)

    assert (done.returncode, done.stderr) == (2, f"error: {problem}\n")


@pytest.mark.parametrize("said", ["step_skip", "step_skip=", "step_skip=nan", "=0.1", "a b=0.1"])
def test_a_threshold_that_is_none_is_named(said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["generate", "a cat", "--interceptor", said])

    assert ended.value.code == 2
    assert f"'{said}' is not NAME=THRESHOLD, such as step_skip=0.1" in capsys.readouterr().err
