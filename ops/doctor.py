"""`engine-admin doctor`: what this machine and this store look like, and what about them is wrong."""

import os
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Literal

from msgspec import Struct

from cards import registry
from cards.errors import CardError
from cards.family import Family
from engine import check
from engine.clock import Clock
from ops.settings import Settings
from ops.whereabouts import running_engine
from store.errors import StoreError
from store.journal import JobFilter
from store.open import open_journal, revisions

FIXED_SQLITE = (3, 51, 3)
"""From here on a WAL reset while two connections write cannot corrupt the file; one writer does not meet it either."""


class Finding(Struct, frozen=True):
    what: str
    level: Literal["ok", "note", "wrong"]
    message: str


async def examine(settings: Settings, clock: Clock) -> list[Finding]:
    """Never raises for what it is meant to find."""
    findings = [_sqlite(), _numerics(), *_models(settings), _disk(settings.data, clock.monotonic), _engine(settings)]
    try:
        findings += _schema(settings)
        async with open_journal(settings.store_url, writable=False) as journal:
            report = await check.check(journal)
            waiting = await journal.jobs(JobFilter(open=True), limit=1000)
    except StoreError as error:
        return [*findings, Finding("store", "wrong", str(error))]
    findings.append(Finding("log", "ok", f"{report.events} events in {report.streams} streams"))
    findings += [Finding("log", "wrong", problem) for problem in report.problems]
    findings.append(Finding("jobs", "ok", f"{len(waiting)} open"))
    return findings


def _sqlite() -> Finding:
    version = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info >= FIXED_SQLITE:
        return Finding("sqlite", "ok", version)
    return Finding("sqlite", "note", f"{version} has the WAL-reset bug; the engine's single writer stays clear of it")


def _numerics() -> Finding:
    from cards.fingerprint import numerics

    return Finding("numerics", "ok", numerics())


def _models(settings: Settings) -> list[Finding]:
    try:
        families = registry.load(settings.families).values()
        return [Finding("model", "ok", " ".join(map(str, _identity(family)))) for family in families]
    except (CardError, OSError) as error:
        return [Finding("model", "wrong", str(error))]


def _identity(family: Family) -> tuple[str, str, str, str, str]:
    identity = registry.identity(family)
    return identity.name, "card", identity.card[:16], "weights", identity.weights[:16]


def _disk(data: Path, monotonic: Callable[[], float], probes: int = 20) -> Finding:
    try:
        with tempfile.NamedTemporaryFile(dir=data) as file:
            times = []
            for _ in range(probes):
                began = monotonic()
                file.write(b"\0" * 4096)
                file.flush()
                os.fdatasync(file.fileno())
                times.append(monotonic() - began)
    except OSError as error:
        return Finding("disk", "wrong", f"cannot write in {data}: {error.strerror}")
    return Finding("disk", "ok", f"4 KiB and fdatasync take {median(times) * 1000:.2f} ms (median of {probes})")


def _engine(settings: Settings) -> Finding:
    there = running_engine(settings)
    return Finding("engine", "ok", f"pid {there.pid} serves {there.url}" if there else "none serves this folder")


def _schema(settings: Settings) -> list[Finding]:
    store, code = revisions(settings.store_url)
    return [Finding("schema", "ok", f"revision {store or 'none yet'}, this code is written for {code}")]
