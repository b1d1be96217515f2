"""The exit code of all that goes wrong, and that it is one line. docs/how-to/operate.md says what the codes mean."""

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ops.errors import BadSettings
from ops.settings import Settings
from tests.ops.admin import admin, settings_of
from tests.ops.stores import DONE, OTHER, RESTING, copied, make_store
from tests.processes import run


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("stores") / "store"
    make_store(data)
    return data


@pytest.fixture
def settings(store: Path, tmp_path: Path) -> Settings:
    return settings_of(copied(store, tmp_path / "data"))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """What an argument may name, by what it is."""
    named = {name: tmp_path / name for name in ("file", "empty", "folder", "none")}
    named["file"].write_text("neither a bundle nor a backup")
    named["empty"].touch()
    named["folder"].mkdir()
    return named | {
        "in none": tmp_path / "none" / "x.tar",
        "in file": named["file"] / "x.tar",
        "long": tmp_path / ("n" * 250),
        "too long": tmp_path / ("n" * 300),
        "device": Path("/dev/null"),
    }


NOT_ASKED: list[tuple[Any, ...]] = [
    ("jobs",),
    ("jobs", "cancel"),
    ("jobs", "cancel", DONE, "--status", "running"),
    ("jobs", "list", "--limit", "0"),
    ("jobs", "list", "--limit", "-5"),
    ("jobs", "list", "--limit", "9" * 30),
    ("jobs", "list", "--page", "rubbish"),
    ("jobs", "list", "--older", "soon"),
    ("jobs", "list", "--older", "9" * 400 + "d"),
    ("jobs", "list", "--newer", "²h"),
    ("jobs", "list", "--metadata", "user"),
    ("jobs", "list", "--status", ""),
    ("jobs", "show", "\udc80"),
    ("jobs", "pause", RESTING, "--reason", "x" * 1001),
    ("jobs", "pause", RESTING, "--reason", "\udc80"),
    ("jobs", "fork", DONE, "--at-step", "-1"),
    ("jobs", "fork", DONE, "--at-step", "2", "--set", "guidance=abc"),
    ("jobs", "fork", DONE, "--at-step", "2", "--set", "guidance=999"),
    ("jobs", "fork", DONE, "--at-step", "2", "--set", "seed=-1"),
    ("jobs", "fork", DONE, "--at-step", "2", "--set", "prompt="),
    ("jobs", "migrate", RESTING, "--to", "x" * 5000),
    *(("jobs", "export", DONE, "-o", file) for file in ("folder", "in none", "in file", "too long", "long", "device")),
    ("jobs", "export", RESTING, "--move", "-o", "long"),
    *(("jobs", "import", file) for file in ("folder", "none", "device", "too long")),
    ("replay", "verify"),
    ("replay", "verify", DONE, "--all"),
    *(("replay", "verify", "--corpus", file) for file in ("folder", "file", "none")),
    *(("log", "export", "-o", file) for file in ("folder", "in none", "in file", "too long")),
    ("log", "tail", "-n", "0"),
    *(("db", "backup", file) for file in ("file", "folder", "device", "in none", "in file", "too long", "long")),
    *(("db", "restore", file) for file in ("folder", "none", "in file", "too long")),
    ("sql",),
    ("sql", ""),
    ("sql", "   "),
    ("sql", ";"),
    ("sql", "-- nothing"),
    ("sql", "SELECT 1; SELECT 2"),
    ("sql", "DELETE FROM jobs"),
    ("sql", "SELECT 1", "--timeout", "0s"),
    ("sql", "SELECT 1", "--timeout", "-1s"),
    ("sql", "SELECT 1", "--timeout", "9" * 400 + "s"),
    ("sql", "SELECT 1", "--limit", "0"),
]

FOUND: list[tuple[Any, ...]] = [
    ("jobs", "show", "nobody"),
    ("jobs", "show", ""),
    ("jobs", "list", "--after", "nobody"),
    ("jobs", "purge", RESTING),
    ("jobs", "rewind", DONE, "--to-step", "1"),
    ("jobs", "fork", DONE, "--at-step", "99"),
    ("jobs", "migrate", RESTING, "--to", "engine:nobody"),
    ("jobs", "export", "nobody", "-o", "none"),
    ("jobs", "export", DONE, "--move", "-o", "none"),
    ("jobs", "import", "file"),
    ("jobs", "import", "empty"),
    ("replay", "verify", DONE, "--from-step", "99"),
    ("replay", "diff", DONE, OTHER),
    ("leases", "break", "nobody"),
    ("workers", "list"),
    ("db", "restore", "file"),
    ("db", "restore", "empty"),
    (
        "sql",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n",
        "--timeout",
        "0.1s",
    ),
]


@pytest.mark.parametrize(
    ("code", "command"),
    [*((2, command) for command in NOT_ASKED), *((1, command) for command in FOUND)],
    ids=lambda value: " ".join(map(ascii, value))[:80] if isinstance(value, tuple) else str(value),
)
async def test_what_cannot_be_asked_for_is_2_and_what_is_found_is_1(
    code: int, command: tuple[str, ...], settings: Settings, files: dict[str, Path], tmp_path: Path
) -> None:
    before = sorted(tmp_path.iterdir())

    done = await admin(settings, *(files.get(word, word) for word in command))

    assert done.code == code, done.err
    if command[:2] != ("replay", "diff"):  # which says on stdout what differs
        assert (done.out.strip(), done.err.count("\n")) in (("", 1), ("nothing", 1))
        assert done.err.startswith("error: ")
    assert sorted(tmp_path.iterdir()) == before, "nothing is left behind"


async def test_a_job_is_not_paused_for_a_file_that_cannot_be_written(
    settings: Settings, files: dict[str, Path]
) -> None:
    assert (await admin(settings, "jobs", "resume", RESTING)).code == 0

    assert (await admin(settings, "jobs", "export", RESTING, "--move", "-o", files["in none"])).code == 2

    assert (await admin(settings, "jobs", "show", RESTING, "--json")).json["status"] == "queued"


def cut(data: bytes) -> bytes:
    return data[:5000]


def one_bit_flipped(data: bytes) -> bytes:
    return data[:600] + bytes([data[600] ^ 1]) + data[601:]


def of_links(data: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        link = tarfile.TarInfo("manifest.json")
        link.type, link.linkname = tarfile.SYMTYPE, "elsewhere"
        tar.addfile(link)
    return file.getvalue()


@pytest.mark.parametrize("damage", [cut, one_bit_flipped, of_links])
async def test_a_bundle_that_is_not_sound_is_called_by_its_own_name(
    damage: Callable[[bytes], bytes], settings: Settings, tmp_path: Path
) -> None:
    file = tmp_path / "from ada.tar"
    assert (await admin(settings, "jobs", "export", DONE, "-o", file)).code == 0
    file.write_bytes(damage(file.read_bytes()))

    done = await admin(settings_of(tmp_path / "new"), "jobs", "import", file)

    assert (done.code, done.err.count("\n")) == (1, 1)
    assert done.err.startswith(f"error: file: {file}: ")
    assert "bundle.tar" not in done.err


async def test_a_bundle_is_not_taken_in_where_there_can_be_no_folder(
    settings: Settings, files: dict[str, Path], tmp_path: Path
) -> None:
    assert (await admin(settings, "jobs", "export", DONE, "-o", tmp_path / "job.tar")).code == 0

    done = await admin(settings_of(files["file"]), "jobs", "import", tmp_path / "job.tar")

    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "choose another --data" in done.err


@pytest.mark.parametrize("url", ["x", "sqlite:///", "mysql://x/y", "postgresql://127.0.0.1:port/x"])
async def test_a_store_that_is_none_cannot_be_asked(url: str, tmp_path: Path) -> None:
    done = await admin(settings_of(tmp_path, url), "jobs", "list")

    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "names no store: write " in done.err


def test_the_memory_of_a_process_that_ends_is_no_store() -> None:
    done = run("engine-admin", "jobs", "list", store="memory://")

    assert (done.returncode, done.stderr.count("\n")) == (BadSettings.code, 1)
    assert "memory:// ends with its process" in done.stderr


def test_a_full_disk_behind_the_output_is_one_line(store: Path) -> None:
    command = [sys.executable, "-m", "ops.admin", "jobs", "list", "--data", str(store)]

    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert (done.returncode, done.stderr) == (1, "error: [Errno 28] No space left on device\n")


def test_words_that_are_no_text_are_one_line(store: Path) -> None:
    done = run("engine-admin", "jobs", "show", os.fsdecode(b"\xff"), data=store)

    assert (done.returncode, done.stderr) == (2, "error: '\\udcff' is not valid UTF-8\n")
