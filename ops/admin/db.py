"""`engine-admin db`: the store as a whole."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from rich.console import Console

from engine import check
from engine.check import Report
from engine.clock import WallClock
from ops import backup
from ops.admin.parser import command
from ops.serve import make_folder
from ops.settings import Settings
from ops.tables import note, show_one
from store import open as stores
from store.blobs import open_blobs, tenants
from store.errors import StoreLocked, StoreUnavailable
from store.open import open_journal

TRIES = 3


def add(db: Any) -> None:
    command(db, "upgrade", _upgrade, "bring the store's schema up to this version, and the job list with it")
    command(db, "check", _check, "fold every log and compare; makes the job list anew where nobody writes meanwhile")
    command(db, "stats", _stats, "how much is in it")
    saving = command(db, "backup", _backup, "the store at one moment as one file, beside engines at work")
    saving.add_argument("file", type=Path)
    saving.add_argument("--without-blobs", action="store_true", help="rows only; large tensors stay where they are")
    command(db, "restore", _restore, "a backup into an empty store of either kind").add_argument("file", type=Path)


async def _upgrade(arguments: argparse.Namespace, settings: Settings) -> int:
    url = settings.store_url
    before = await anyio.to_thread.run_sync(_revision, url)
    await anyio.to_thread.run_sync(stores.upgrade, url)
    after = await anyio.to_thread.run_sync(_revision, url)
    rebuilt = before not in (None, after) and await _rebuild(settings)  # old rows lack what new columns say
    show_one({"store": url, "revision": after, "job_list_rebuilt": rebuilt}, as_json=arguments.json)
    return 0


def _revision(url: str) -> str | None:
    try:
        return stores.revisions(url)[0]
    except StoreUnavailable:
        return None  # it is about to be made


async def _check(arguments: argparse.Namespace, settings: Settings) -> int:
    async with open_journal(settings.store_url, writable=False) as journal:
        report = await check.check(journal)
    rebuilt = await _rebuild(settings) if report.problems else False
    show_one(_found(report) | {"job_list_rebuilt": rebuilt}, as_json=arguments.json)
    return 1 if report.problems else 0


def _found(report: Report) -> dict[str, Any]:
    return {"streams": report.streams, "events": report.events, "problems": report.problems}


async def _rebuild(settings: Settings) -> bool:
    """Write the job list anew from the log, unless others write to it all the time."""
    try:
        async with open_journal(settings.store_url) as journal:
            for _ in range(TRIES):
                newest = (await journal.statistics_of_store()).last_position
                if await journal.replace_rows((await check.check(journal)).rows, at=newest):
                    return True
    except StoreLocked:
        pass
    return False


async def _stats(arguments: argparse.Namespace, settings: Settings) -> int:
    async with open_journal(settings.store_url, writable=False) as journal:
        counted = await journal.statistics_of_store()
    revision = await anyio.to_thread.run_sync(_revision, settings.store_url)
    show_one({"revision": revision} | msgspec.to_builtins(counted), as_json=arguments.json)
    return 0


async def _backup(arguments: argparse.Namespace, settings: Settings) -> int:
    blobs = None if arguments.without_blobs else open_blobs(settings.blobs_url)
    with _progress() as progress:
        done = await anyio.to_thread.run_sync(
            backup.backup, settings.store_url, blobs, arguments.file, progress, WallClock()
        )
    show_one({"file": str(arguments.file)} | _kept(done), as_json=arguments.json)
    return _note_broken(done, "and the backup has it as it is")


async def _restore(arguments: argparse.Namespace, settings: Settings) -> int:
    blobs = open_blobs(settings.blobs_url)
    make_folder(settings.data)
    with _progress() as progress:
        done = await anyio.to_thread.run_sync(backup.restore, settings.store_url, blobs, arguments.file, progress)
    async with open_journal(settings.store_url, writable=False) as journal:
        await anyio.to_thread.run_sync(tenants.move_in, blobs, await journal.identity())
    show_one({"store": settings.store_url} | _kept(done), as_json=arguments.json)
    return _note_broken(done, "as it was when the backup was taken")


def _note_broken(manifest: backup.Manifest, so: str) -> int:
    """A line for each log that is not sound, and the exit code."""
    for stream, problem in manifest.broken.items():
        note(f"error: {stream} is not sound, {so}: {problem}")
    return 1 if manifest.broken else 0


def _kept(manifest: backup.Manifest) -> dict[str, Any]:
    counted = {"revision": manifest.revision, "rows": manifest.rows, "blobs": manifest.blobs}
    return counted | {"broken": manifest.broken}


@contextmanager
def _progress() -> Iterator[Callable[[str, int], None]]:
    with Console(stderr=True).status("looking") as status:
        yield lambda what, count: status.update(f"{what} {count:,}")
