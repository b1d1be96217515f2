"""Stores and bundles as they were written once. They are added and never edited: what is kept must be read for ever.

`python -m tests.goldens store` writes a store of the schema that the code has.
`python -m tests.goldens bundles RELEASE` writes the bundles of a release, with the digests that their jobs end with.
All are from the toy family.
"""

import argparse
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import msgspec
from sqlalchemy import MetaData, NullPool, create_engine, insert, select

from cards.request import RequestChanges
from engine import bundle
from engine.contents import Contents
from store.migrate import migrate
from store.open import open_journal
from store.schema import REVISION
from tests.history import FOLDER
from tests.sim import Running, World, digests, request

MADE_BY_MIGRATIONS = {"alembic_version", "compatibility"}

STEPS = 6

# -- a store ----------------------------------------------------------------------------------------------------


async def write_store(path: Path) -> None:
    """Jobs that have ended in each way, one in the middle of its steps and one that waits; all bytes are inline."""
    async with open_journal(f"sqlite:///{path}") as journal:
        world = World(journal)
        async with world.engine() as running:
            await _end_some(running)
            await _leave_some(running)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("VACUUM")
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)


async def _end_some(running: Running) -> None:
    submit, ended = running.client.submit, running.ended
    for number, prompt in enumerate(("a count", "an unknown count", "a count fail=1")):
        job = await submit(request(prompt, preview_every=2, metadata={"number": str(number)}), key=f"key-{number}")
        await ended(job.id)


async def _leave_some(running: Running) -> None:
    """The half-done one has been taken over once, and the cancelled one is a fork."""
    [worker] = running.workers
    worker.hold_at = len(worker.ran) + 25
    half_done = await running.client.submit(request(steps=60))
    await running.until(lambda: worker.gate is not None)
    fork = await running.client.fork("job-0001", 2, RequestChanges(guidance=2.0))
    await running.client.cancel(fork.id, "enough")
    await running.client.verbs.pause(half_done.id, "for a while")
    worker.open()
    await running.until(lambda: half_done.id not in running.engine.ledger.actors)
    worker.frozen = True
    waiting = await running.client.submit(request(priority=3))
    await running.client.verbs.resume(half_done.id)
    await running.until(lambda: {half_done.id, waiting.id} <= running.engine.ledger.actors.keys())
    await running.engine.drain(0.1)


def revision(store: Path) -> str:
    return store.stem.removeprefix("schema-")


def fill(url: str, store: Path) -> None:
    """Make an empty PostgreSQL database what a kept store is: by the migrations of its time, and with its rows."""
    source = create_engine(f"sqlite:///file:{store}?immutable=1&uri=true", poolclass=NullPool)
    target = create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool)
    with source.connect() as read, target.begin() as write:
        migrate(write, revision(store))
        old_tables, tables = MetaData(), MetaData()
        old_tables.reflect(read)
        tables.reflect(write)
        for name in old_tables.tables.keys() - MADE_BY_MIGRATIONS:
            if rows := [row._asdict() for row in read.execute(select(old_tables.tables[name]))]:
                write.execute(insert(tables.tables[name]), [_as_booleans(row) for row in rows])
        write.exec_driver_sql("SELECT setval(pg_get_serial_sequence('events', 'position'), max(position)) FROM events")


def _as_booleans(row: dict[str, Any]) -> dict[str, Any]:
    return {name: bool(value) if name == "open" else value for name, value in row.items()}


# -- bundles ----------------------------------------------------------------------------------------------------


async def write_bundles(finished_file: Path, half_done_file: Path) -> None:
    """One of a job that has ended, and one of a job in the middle of its steps, as `jobs export --move` writes it."""
    world = World()
    async with world.engine() as running:
        finished = await running.ended((await running.client.submit(request(steps=STEPS, preview_every=2))).id)
        half_done = await _paused(running)
        whole = digests(await running.client.checkpoints(finished.id))
        for file, job, moved in ((finished_file, finished.id, False), (half_done_file, half_done, True)):
            contents = Contents(world.journal, world.blobs)
            await bundle.export(world.journal, contents, job, file, origin="toy", moved=moved, resumes=moved)
            file.with_suffix(".json").write_bytes(msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n")


async def _paused(running: Running) -> str:
    [worker] = running.workers
    worker.hold_at = len(worker.ran) + STEPS // 2
    job = await running.client.submit(request(steps=STEPS, preview_every=2))
    await running.until(lambda: worker.gate is not None)
    await running.client.verbs.pause(job.id)
    worker.open()
    await running.until(lambda: job.id not in running.engine.ledger.actors)
    return job.id


def _new(path: Path) -> Path:
    if path.exists():
        raise SystemExit(f"{path.name} is there, and is never edited")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.goldens", description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    kinds.add_parser("store")
    kinds.add_parser("bundles").add_argument("release")
    options = parser.parse_args()
    if options.kind == "store":
        anyio.run(write_store, _new(FOLDER / f"schema-{REVISION}.db"))
    else:
        kept = [_new(FOLDER / f"bundle-{options.release}-{name}.tar") for name in ("finished", "half-done")]
        anyio.run(write_bundles, *kept)


if __name__ == "__main__":
    main()
