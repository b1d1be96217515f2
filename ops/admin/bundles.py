"""`engine-admin jobs export|import`: a job as one file, out of one store and into another."""

import argparse
import socket
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import anyio
import msgspec

from engine import bundle
from engine.bundle import Manifest
from engine.contents import Contents
from ops.admin.parser import command
from ops.admin.verbs import engine_for, engines_of
from ops.errors import BadSettings, OpsError, Refused
from ops.remote import JobObject, Remote
from ops.serve import make_folder
from ops.settings import Settings
from ops.tables import show_one
from store.blobs import open_blobs
from store.open import open_journal

MOVING = "moving"
"""How the reason of a pause begins that is for the way only."""

RESTING = ("paused", "quarantined")

TRIES = 50
"""How often a step that is out may come back while its job is being written."""


def add(jobs: Any) -> None:
    exporting = command(jobs, "export", _export, "write a job to a file: its log, its last checkpoint, their bytes")
    exporting.add_argument("job")
    exporting.add_argument("-o", "--out", type=Path, required=True, metavar="FILE")
    exporting.add_argument("--move", action="store_true", help="and let go of it: it goes on where it is taken in")
    importing = command(jobs, "import", _import, "take a job in from a file: it goes on here")
    importing.add_argument("file", type=Path)


async def _export(arguments: argparse.Namespace, settings: Settings) -> int:
    _check_out(arguments.out)
    if arguments.move:
        async with engine_for(settings, arguments.job) as engine:
            manifest = await _move(engine, arguments, settings)
    else:
        manifest = await _write(arguments.job, arguments.out, settings)
    show_one(msgspec.to_builtins(manifest) | {"file": str(arguments.out)}, as_json=arguments.json)
    return 0


def _check_out(out: Path) -> None:
    """Before a job is paused for it. Raises BadSettings."""
    try:
        if not out.name or out.is_dir():
            raise BadSettings(f"out: {out} is a folder; name a file in it")
        if out.exists() and not out.is_file():
            raise BadSettings(f"out: {out} is no file, and is not replaced by one; choose another name")
        if not out.parent.is_dir():
            raise BadSettings(f"out: there is no folder {out.parent}")
        with NamedTemporaryFile(dir=out.parent, prefix=f".{out.name}."):
            pass
    except OSError as error:
        raise BadSettings(f"out: cannot write {out}: {error.strerror}; choose another place") from error


async def _move(engine: Remote, arguments: argparse.Namespace, settings: Settings) -> Manifest:
    """Until nobody has written to the log between the file and the word that it goes on elsewhere.

    The file has its name once the job is let go of. Broken off before, the job is paused and the command can be given
    again; broken off between the two, all that is left to do is the name.
    """
    part = arguments.out.with_name(f".{arguments.out.name}.moving")
    job = await engine.job(arguments.job)
    if job["status"] == "moved":
        return _named(part, arguments)
    if job["status"] not in RESTING:
        await engine.act(arguments.job, "pause", reason=f"{MOVING} to {arguments.out.name}")
    resumes = job["status"] not in RESTING or (job["reason"] or "").startswith(MOVING)
    for _ in range(TRIES):
        manifest = await _write(arguments.job, part, settings, moved=True, resumes=resumes)
        try:
            await engine.act(arguments.job, "moved", version=manifest.version, to=arguments.out.name)
        except Refused as refused:
            if refused.kind != "gone_on":
                raise
            await anyio.sleep(0.1)
        else:
            return _named(part, arguments)
    raise OpsError(f"job {arguments.job} goes on and on though it is paused; ask again")


def _named(part: Path, arguments: argparse.Namespace) -> Manifest:
    """Raises BadSettings, BadBundle."""
    if not part.exists():
        raise OpsError(f"job {arguments.job} has moved already, and not to {arguments.out}")
    manifest = bundle.read(part).manifest
    if manifest.job != arguments.job:
        raise OpsError(f"out: {part} is of job {manifest.job}; choose another name")
    part.replace(arguments.out)
    return manifest


async def _write(job: str, file: Path, settings: Settings, **how: bool) -> Manifest:
    async with open_journal(settings.store_url, writable=False) as journal:
        contents = Contents(journal, open_blobs(settings.blobs_url))
        return await bundle.export(journal, contents, job, file, origin=socket.gethostname(), **how)


async def _import(arguments: argparse.Namespace, settings: Settings) -> int:
    _check_file(arguments.file)
    await _make_store(settings)
    async with engines_of(settings) as engines:
        accepted = await _take_in(engines.owning(None), arguments.file)
    show_one({"job": accepted["id"], "status": accepted["status"]}, as_json=arguments.json)
    return 0


def _check_file(file: Path) -> None:
    """Raises BadSettings."""
    try:
        if not file.is_file():
            raise BadSettings(f"file: there is no file {file}")
        with file.open("rb"):
            pass
    except OSError as error:
        raise BadSettings(f"file: cannot read {file}: {error.strerror}") from error


async def _take_in(engine: Remote, file: Path) -> JobObject:
    """The engine does not know what the file is called here. Raises OpsError."""
    try:
        return await engine.take_in(file)
    except Refused as refused:
        if refused.kind != "bad_bundle":
            raise
        problem = str(refused).partition(": ")[2]
        raise OpsError(f"file: {file}: {problem}") from refused


async def _make_store(settings: Settings) -> None:
    """Where there is none yet. One that an engine holds is there."""
    if settings.store_file is not None and not settings.store_file.exists():
        make_folder(settings.store_file.parent)
        async with open_journal(settings.store_url):
            pass
