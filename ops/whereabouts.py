"""Where the engine of a data folder can be reached: a file that it writes when it is up and removes when it stops."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec
from msgspec import Struct


class Whereabouts(Struct, frozen=True):
    pid: int
    url: str


def _file(data: Path) -> Path:
    return data / "engine.json"


@contextmanager
def announced(data: Path, whereabouts: Whereabouts) -> Iterator[None]:
    path = _file(data)
    path.write_bytes(msgspec.json.encode(whereabouts))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def running_engine(data: Path) -> Whereabouts | None:
    """The engine that serves this folder now, if one answers; the file may be older than a crash."""
    try:
        there = msgspec.json.decode(_file(data).read_bytes(), type=Whereabouts)
        os.kill(there.pid, 0)  # another engine may have its port by now
        httpx.get(f"{there.url}/livez", timeout=2.0).raise_for_status()
    except (OSError, msgspec.DecodeError, httpx.HTTPError):
        return None
    return there
