"""Stores with jobs in them, made without a process, and what somebody may do to the file."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import anyio

from store.open import open_journal
from tests.ops.admin import settings_of, world_on
from tests.sim import request

DONE, OTHER, RESTING = "job-0001", "job-0002", "job-0003"
"""Two jobs that have ended and one that is paused, all of one user."""


def make_store(data: Path) -> None:
    async def fill() -> None:
        settings = settings_of(data)
        async with open_journal(settings.store_url) as journal:
            async with world_on(journal, settings).engine() as running:
                for number, job in enumerate((DONE, OTHER)):
                    running.client._ids = lambda job=job: job
                    await running.client.submit(request("a count big=70000", seed=number, metadata={"user": "ada"}))
                    await running.ended(job)
            async with world_on(journal, settings).engine(workers=0) as idle:
                idle.client._ids = lambda: RESTING
                await idle.client.submit(request(metadata={"user": "ada"}))
                await idle.client.verbs.pause(RESTING)

    data.mkdir()
    anyio.run(fill)


def copied(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


def execute(data: Path, sql: str) -> None:
    with closing(sqlite3.connect(data / "keyframe.db")) as connection:
        assert connection.execute(sql).rowcount
        connection.commit()
