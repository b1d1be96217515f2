"""`engine-admin jobs`: what there is to see of them."""

import argparse
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import anyio
import msgspec

from engine import check, course, views
from engine import events as facts
from engine.actor import replay, restore, stream
from engine.audit import audit_stream, sound_log
from engine.clock import WallClock
from engine.errors import AlteredLog, JobNotFound
from engine.events import StepCompleted
from engine.job import Job
from ops.admin.parser import command, positive
from ops.admin.selection import filter_flags, filter_of, note_unreadable, row_of, unreadable_rows
from ops.admin.telling import told
from ops.errors import NoEngine, OpsError
from ops.live import live_engines, reached
from ops.settings import Settings
from ops.tables import note, show, show_json, show_line, show_one
from store.journal import Journal
from store.open import open_journal

POLL_S = 0.5

COLUMNS = ("position", "version", "epoch", "at", "type")
AS_AN_ENGINE_TELLS_IT = ("position", "version", "at", "type")


def add(jobs: Any) -> None:
    listing = command(jobs, "list", _list, "the jobs that a filter finds, newest first")
    filter_flags(listing)
    listing.add_argument("--after", metavar="JOB", help="continue a listing after this job")
    listing.add_argument("--limit", type=positive, default=100)
    listing.add_argument("--ids-only", action="store_true", help="an id a line")
    for name, run, what in (
        ("show", _show, "one job"),
        ("events", _events, "what has happened to a job"),
        ("steps", _steps, "the steps that count of a job today, numbered over its whole program, and what each made"),
        ("watch", _watch, "follow a job to its end; exits with 1 unless it completes"),
    ):
        command(jobs, name, run, what).add_argument("job")


async def _list(arguments: argparse.Namespace, settings: Settings) -> int:
    where = filter_of(arguments, WallClock().now())
    async with open_journal(settings.store_url, writable=False) as journal:
        if arguments.after is not None and await row_of(journal, arguments.after) is None:
            raise OpsError(f"after: no job {arguments.after!r}: give the last id of a page, or leave it out")
        found = await journal.jobs(where, after=arguments.after, limit=arguments.limit + 1)
        unreadable = [row.id async for row in unreadable_rows(journal, where)]
    rows = found[: arguments.limit]
    if arguments.ids_only:
        _show_ids([row.id for row in rows], as_json=arguments.json)
    else:
        shown = [msgspec.to_builtins(row) for row in rows]
        show([{name: row[name] for name in row if name != "open"} for row in shown], as_json=arguments.json)
    if len(found) > arguments.limit:
        note(f"there are more: --after {rows[-1].id}")
    return note_unreadable(unreadable)


def _show_ids(ids: list[str], *, as_json: bool) -> None:
    if as_json:
        show_json(ids)
    else:
        print("\n".join(ids), end="\n" if ids else "")


async def _show(arguments: argparse.Namespace, settings: Settings) -> int:
    async with open_journal(settings.store_url, writable=False) as journal:
        await sound_log(journal, arguments.job)
        job = await _job(journal, arguments.job)
    show_one(msgspec.to_builtins(job) | {"status": views.status(job)}, as_json=arguments.json)
    return 0


async def _job(journal: Journal, job_id: str) -> Job:
    """Raises JobNotFound."""
    loaded = await journal.load(stream(job_id))
    if loaded is None:
        raise JobNotFound(job_id)
    return restore(loaded).job


async def _events(arguments: argparse.Namespace, settings: Settings) -> int:
    async with open_journal(settings.store_url, writable=False) as journal:
        events = [told(event, *COLUMNS) async for event in check.history(journal, stream(arguments.job))]
        problem = await audit_stream(journal, stream(arguments.job))
    if not events and problem is None:
        raise JobNotFound(arguments.job)
    show(events, as_json=arguments.json)
    if problem is not None:  # whoever looks for what was altered wants to see all of it
        raise AlteredLog(arguments.job, problem)
    return 0


async def _steps(arguments: argparse.Namespace, settings: Settings) -> int:
    async with open_journal(settings.store_url, writable=False) as journal:
        history = [facts.decode(event) for event in await sound_log(journal, arguments.job)]
    steps = course.steps(course.course(history))
    pins = replay(history).pins
    shown = [_step(number, step, pinned=number in pins) for number, step in enumerate(steps, start=1)]
    show(shown, as_json=arguments.json)
    return 0


def _step(number: int, step: StepCompleted, *, pinned: bool) -> dict[str, Any]:
    digests = {name: ref.digest for name, ref in step.tensors.items()}
    return {
        "number": number,
        "node": step.node,
        "step": step.step,
        "kind": step.kind,
        "worker": step.worker,
        "seconds": step.seconds,
        "pinned": pinned,
        "digests": digests | {ref.name: ref.digest for ref in step.artifacts},
    }


# -- following ----------------------------------------------------------------------------------------------------


async def _watch(arguments: argparse.Namespace, settings: Settings) -> int:
    async with open_journal(settings.store_url, writable=False) as journal:
        await sound_log(journal, arguments.job)
        async for event in _followed(settings, journal, arguments.job):
            show_line(event, as_json=arguments.json)
        ended = await _job(journal, arguments.job)
    return 0 if views.status(ended) == "completed" else 1


async def _followed(settings: Settings, journal: Journal, job: str) -> AsyncIterator[dict[str, Any]]:
    """As a live engine tells it; from the log for as long as there is none."""
    position = 0
    row = await row_of(journal, job)
    if found := await live_engines(settings, journal):
        async with reached(found) as engines:
            with suppress(NoEngine):  # it has ended: the log has the rest
                async for event in engines.owning(row.owner if row is not None else None).events(job):
                    position = event["position"]
                    yield event
    async for event in _polled(journal, job, position):
        yield event


async def _polled(journal: Journal, job: str, after: int) -> AsyncIterator[dict[str, Any]]:
    while True:
        ended = (await _job(journal, job)).terminal  # asked first: an end between the two would go unread
        async for event in check.history(journal, stream(job), after=after):
            after = event.position
            yield told(event, *AS_AN_ENGINE_TELLS_IT)
        if ended:
            return
        await anyio.sleep(POLL_S)
