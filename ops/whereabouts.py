"""Where the engine of a data folder can be reached: a file that it writes when it is up and removes when it stops."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from ops.errors import OpsError
from ops.settings import Settings


class Whereabouts(Struct, frozen=True):
    pid: int
    url: str
    store: str
    """As `Settings.store_name` has it: a copied folder is not served by the engine of the original."""


@contextmanager
def announced(data: Path, whereabouts: Whereabouts) -> Iterator[None]:
    """Raises OpsError."""
    path = _file(data)
    try:
        path.write_bytes(msgspec.json.encode(whereabouts))
    except OSError as error:
        raise OpsError(f"cannot write {path}: {error.strerror}") from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def running_engine(settings: Settings) -> Whereabouts | None:
    """The engine that serves this store now, if one answers; what is written may be older than a crash."""
    for folder in settings.folders:
        there = _read(_file(folder))
        if there is not None and there.store == settings.store_name and _answers(there):
            return there
    return None


def _file(folder: Path) -> Path:
    return folder / "engine.json"


def _read(file: Path) -> Whereabouts | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Whereabouts)
    except (OSError, msgspec.DecodeError):
        return None


def _answers(there: Whereabouts) -> bool:
    import httpx  # an engine that starts where none was has nobody to ask

    try:
        os.kill(there.pid, 0)  # another engine may have its port by now
        return httpx.get(f"{there.url}/livez", timeout=2.0, trust_env=False).is_success
    except (OSError, httpx.HTTPError, httpx.InvalidURL):
        return False
