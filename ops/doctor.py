"""`engine-admin doctor`: what this machine and this store look like, and what about them is wrong."""

import os
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from pathlib import Path
from statistics import median
from typing import Literal

from msgspec import Struct

from cards import checkpoint, registry
from cards.errors import CardError, UnusableModel
from cards.family import Family
from cards.model import Model
from engine import check
from engine.audit import audit
from engine.clock import Clock
from ops.live import live_engines
from ops.models import families_of, read_models
from ops.settings import Settings
from store.errors import StoreError
from store.journal import EngineRow, JobFilter, Journal
from store.open import database_time, open_journal, requirement, revisions
from workers.devices import device_of
from workers.errors import NoDevice

FIXED_SQLITE = (3, 51, 3)
"""From here on a WAL reset while two connections write cannot corrupt the file; one writer does not meet it either."""


SKEW_S = 1.0

NAMED = 5

Level = Literal["ok", "note", "wrong"]


class Finding(Struct, frozen=True):
    what: str
    level: Level
    message: str


async def examine(settings: Settings, clock: Clock) -> list[Finding]:
    """Never raises for what it is meant to find."""
    findings = [_sqlite(), _numerics(settings), *_models(settings), _disk(settings.data, clock.monotonic)]
    try:
        findings += [_schema(settings), _clock(settings, clock)]
        async with open_journal(settings.store_url, writable=False) as journal:
            findings += [finding async for finding in _store(journal, settings)]
            await journal.identity()  # without one nothing can be collected
    except StoreError as error:
        return [*findings, Finding("store", "wrong", str(error))]
    return findings


async def _store(journal: Journal, settings: Settings) -> AsyncIterator[Finding]:
    live = await live_engines(settings, journal)
    yield Finding("engine", "ok", ", ".join(f"{one.name} serves {one.url}" for one in live) or "none answers")
    leases = await journal.engines()
    for lease in leases:
        yield _lease(lease)
    report = await check.check(journal)
    yield Finding("log", "ok", f"{report.events} events in {report.streams} streams")
    for problem in report.problems:
        yield Finding("log", "wrong", problem)
    for stream, problem in (await audit(journal)).broken.items():
        yield Finding("chain", "wrong", f"{stream}: {problem}")
    waiting = [row async for row in check.rows(journal, JobFilter(open=True))]
    yield Finding("jobs", "ok", f"{len(waiting)} open")
    owners = {one.name for one in live} | {lease.name for lease in leases if lease.left_s > 0}
    if stranded := [row.id for row in waiting if row.owner not in owners and (row.owner or not owners)]:
        yield _stranded(stranded, owners)
    for stream in await journal.purging():
        job = stream.removeprefix("job/")
        yield Finding("purge", "wrong", f"that of {stream} was cut off: engine-admin jobs purge {job}")


def _lease(lease: EngineRow) -> Finding:
    where = f"{lease.name} at {lease.url or 'no URL'}"
    if lease.left_s > 0:
        return Finding("lease", "ok", f"{where} has {lease.left_s:.1f} s left")
    return Finding("lease", "note", f"{where} ran out {-lease.left_s:.1f} s ago: its jobs are anyone's")


def _stranded(jobs: Sequence[str], owners: Collection[str]) -> Finding:
    """Not wrong: this is how a store without an engine is, and what one with an engine mends at once."""
    named = ", ".join(jobs[:NAMED]) + (", …" if len(jobs) > NAMED else "")
    remedy = "a live engine takes them over" if owners else "start an engine"
    return Finding("stranded", "note", f"{len(jobs)} open jobs have no live owner: {named} ({remedy})")


def _clock(settings: Settings, clock: Clock) -> Finding:
    """Leases run by the database's clock alone; the times in events and of filters are those of hosts."""
    before = clock.now()
    there = database_time(settings.store_url)
    skew = there - (before + clock.now()) / 2
    level: Level = "ok" if abs(skew) < SKEW_S else "note"
    return Finding("clock", level, f"the database's clock is {skew:+.3f} s off this host's")


def _sqlite() -> Finding:
    version = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info >= FIXED_SQLITE:
        return Finding("sqlite", "ok", version)
    return Finding("sqlite", "note", f"{version} has the WAL-reset bug; the engine's single writer stays clear of it")


def _numerics(settings: Settings) -> Finding:
    from cards.fingerprint import numerics

    try:
        return Finding("numerics", "ok", numerics(device_of(settings.device)))
    except NoDevice as error:
        return Finding("numerics", "wrong", str(error))


def _models(settings: Settings) -> list[Finding]:
    try:
        families = families_of(settings)
        usable = [Finding("model", "ok", " ".join(map(str, _identity(family)))) for family in families.values()]
        unusable = [Finding("model", "wrong", str(UnusableModel(*one))) for one in families.unusable.items()]
        there = [model for model in read_models(settings) if model.name in families]
        return [*usable, *unusable, *filter(None, map(_registered, there))]
    except (CardError, OSError) as error:
        return [Finding("model", "wrong", str(error))]


def _registered(model: Model) -> Finding | None:
    """A checkpoint whose files do not look as they did: other weights, or the same ones copied anew."""
    if not (touched := checkpoint.touched(model.root, model.files)):
        return None
    remedy = f"engine models check {model.name}, then engine models add {model.name} {model.folder} --replace"
    return Finding("model", "note", f"{model.name}: {', '.join(touched)} changed after it was registered: {remedy}")


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


def _schema(settings: Settings) -> Finding:
    store, code = revisions(settings.store_url)
    takes = requirement(settings.store_url)
    oldest = f", takes engines from {takes} on" if takes is not None else ""
    return Finding("schema", "ok", f"revision {store or 'none yet'}{oldest}; this code is written for {code}")
