"""`engine generate`: what it sends, and what it refuses before any engine starts."""

from pathlib import Path

import anyio
import pytest

from ops import cli
from ops.generate import generate
from ops.settings import Settings
from tests.api.serving import app_of, served
from tests.api.test_http_inputs import MOVING, png
from tests.sim import World
from tests.toy import ToyFamily


@pytest.mark.parametrize(
    ("image", "code", "words"),
    [("nowhere.png", 2, "image: cannot read"), ("text.png", 1, "image: is no image that can be read")],
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
