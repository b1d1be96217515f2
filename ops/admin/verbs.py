"""`engine-admin jobs`: what is done to them, one by one or by the thousand.

A live engine is asked over HTTP; where none is up, the same requests are answered by an engine in this process.
"""

import argparse
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct

from engine.clock import WallClock
from engine.verbs import ALLOWED
from engine.views import STATUS
from ops.admin import bulk
from ops.admin.parser import command, reason
from ops.admin.selection import check, filter_flags, filter_of, note_unreadable, row_of, selected, unreadable_rows
from ops.live import Engines, LiveEngine, live_engines, reached
from ops.offline import offline
from ops.remote import Remote
from ops.settings import Settings
from ops.tables import show
from store.journal import JobRow, Journal
from store.open import open_journal

Ask = Callable[[Remote, str, argparse.Namespace], Awaitable[str]]
"""What to ask for one job; what came of it."""


class Verb(Struct, frozen=True):
    what: str
    ask: Ask
    reasoned: bool = False
    """Whether the log says why."""


async def _purge(remote: Remote, job: str, arguments: argparse.Namespace) -> str:
    await remote.purge(job)
    return "purged"


def _posted(name: str, *, reasoned: bool = False) -> Ask:
    async def ask(remote: Remote, job: str, arguments: argparse.Namespace) -> str:
        because = {"reason": arguments.reason} if reasoned and arguments.reason else {}
        outcome: str = (await remote.act(job, name, **because))["outcome"]
        return outcome

    return ask


VERBS = {
    "cancel": Verb("cancel jobs; a running step ends first", _posted("cancel")),
    "terminate": Verb("cancel jobs at once", _posted("terminate", reasoned=True), reasoned=True),
    "pause": Verb("send no further step of jobs", _posted("pause", reasoned=True), reasoned=True),
    "resume": Verb("let paused jobs go on", _posted("resume")),
    "retry": Verb("give jobs that ended badly a new chance", _posted("retry", reasoned=True), reasoned=True),
    "quarantine": Verb("set jobs aside: no engine touches them", _posted("quarantine", reasoned=True), reasoned=True),
    "release": Verb("let jobs out of quarantine", _posted("release")),
    "purge": Verb("forget jobs that have ended, and their logs", _purge),
}


def add(jobs: Any) -> None:
    for name, verb in VERBS.items():
        parser = command(jobs, name, functools.partial(_run, name), verb.what)
        parser.add_argument("jobs", nargs="*", metavar="JOB", help="ids; or give a filter")
        filter_flags(parser)
        parser.add_argument("--dry-run", action="store_true", help="only say which")
        if verb.reasoned:
            parser.add_argument("--reason", type=reason, default="", metavar="TEXT", help="for whoever reads the log")


async def _run(name: str, arguments: argparse.Namespace, settings: Settings) -> int:
    """A filter finds those that the verb has something to do for; a job that is named is asked for in any case."""
    check(arguments)
    statuses = {STATUS[state] for state in ALLOWED[name]}
    async with open_journal(settings.store_url, writable=False) as journal:
        found = await selected(journal, arguments, WallClock().now(), statuses)
        live = await live_engines(settings, journal)
        unsure = await _unsure(journal, arguments)
    code = note_unreadable(unsure)
    if arguments.dry_run:
        show([{"job": job, "status": row and row.status} for job, row in found.items()], as_json=arguments.json)
        return code

    def act(job: str) -> Awaitable[str]:
        return VERBS[name].ask(engines.owning(_owner(found[job])), job, arguments)

    async with _engines(settings, live) as engines:
        results = await bulk.each(found, act)
    return bulk.report(results, as_json=arguments.json) or code


async def _unsure(journal: Journal, arguments: argparse.Namespace) -> list[str]:
    if not arguments.metadata:
        return []
    return [row.id async for row in unreadable_rows(journal, filter_of(arguments, WallClock().now()))]


def _owner(row: JobRow | None) -> str | None:
    return row.owner if row is not None else None


@asynccontextmanager
async def _engines(settings: Settings, live: Sequence[LiveEngine]) -> AsyncIterator[Engines]:
    """The live ones, or one of this process."""
    if live:
        async with reached(live) as engines:
            yield engines
    else:
        async with offline(settings) as here:
            yield Engines({"": here})


@asynccontextmanager
async def engines_of(settings: Settings) -> AsyncIterator[Engines]:
    """Those of a store, or one of this process."""
    async with open_journal(settings.store_url, writable=False) as journal:
        live = await live_engines(settings, journal)
    async with _engines(settings, live) as engines:
        yield engines


@asynccontextmanager
async def engine_for(settings: Settings, job: str) -> AsyncIterator[Remote]:
    """The one to ask about a job."""
    async with open_journal(settings.store_url, writable=False) as journal:
        row = await row_of(journal, job)
        live = await live_engines(settings, journal)
    async with _engines(settings, live) as engines:
        yield engines.owning(_owner(row))
