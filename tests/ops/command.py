"""The `engine` command without a process."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from ops import cli


class Ran(Struct):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.out)


class Engine:
    """The command on a data folder of its own."""

    def __init__(self, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.data = data
        self._capsys = capsys

    def models(self, *words: object) -> Ran:
        code = 0
        try:
            cli.main(["models", *map(str, words), "--data", str(self.data)])
        except SystemExit as ended:
            code = int(str(ended.code))
        out, err = self._capsys.readouterr()
        return Ran(code, out, err)

    @property
    def file(self) -> bytes | None:
        file = self.data / "models.json"
        return file.read_bytes() if file.exists() else None
