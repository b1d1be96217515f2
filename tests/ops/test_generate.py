"""`engine generate`: what it refuses before any engine starts."""

from pathlib import Path

import pytest

from ops import cli


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
