"""Which jobs a command is about: those that are named, or those that a filter finds."""

import argparse
from collections.abc import AsyncIterator, Collection

from msgspec.structs import replace

from engine import views
from engine.check import rows
from engine.job import TERMINAL
from ops.admin.parser import duration, entry, positive
from ops.errors import BadSettings
from ops.tables import note
from store.journal import JobFilter, JobRow, Journal

PAGE = 1000

ENDED = frozenset(views.STATUS[state] for state in TERMINAL)

FILTERS = ("status", "model", "older", "newer", "attempts", "metadata", "prefix", "owner")


def filter_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--status", choices=sorted(set(views.STATUS.values())))
    parser.add_argument("--model")
    parser.add_argument("--older", type=duration, metavar="2h", help="nothing of it has changed in the list since")
    parser.add_argument("--newer", type=duration, metavar="2h", help="something of it has changed since")
    parser.add_argument("--attempts", type=positive, metavar="N", help="it has changed hands so often, or more")
    parser.add_argument("--metadata", type=entry, action="append", metavar="KEY=VALUE", help="may be given repeatedly")
    parser.add_argument("--prefix", metavar="TEXT", help="how its id begins")
    parser.add_argument("--owner", metavar="ENGINE", help="the engine that has it")


def filter_of(arguments: argparse.Namespace, now: float) -> JobFilter:
    return JobFilter(
        status=arguments.status,
        model=arguments.model,
        updated_before=None if arguments.older is None else now - arguments.older,
        updated_after=None if arguments.newer is None else now - arguments.newer,
        attempts_from=arguments.attempts,
        metadata=dict(arguments.metadata or ()),
        prefix=arguments.prefix,
        owner=arguments.owner,
    )


def check(arguments: argparse.Namespace) -> None:
    """Ids or filters, and one of the two: nobody means all jobs by saying nothing. Raises BadSettings."""
    given = [f"--{name}" for name in FILTERS if getattr(arguments, name) is not None]
    if arguments.jobs and given:
        raise BadSettings(f"jobs: there are ids, and {', '.join(given)} too: give one or the other")
    if not arguments.jobs and not given:
        raise BadSettings("jobs: none is named: give ids, or a filter such as --status or --older")


async def selected(
    journal: Journal, arguments: argparse.Namespace, now: float, statuses: Collection[str]
) -> dict[str, JobRow | None]:
    """By id, those named first to last; of those that a filter finds, the ones of these statuses."""
    if arguments.jobs:
        return {job: await row_of(journal, job) for job in arguments.jobs}
    where = filter_of(arguments, now)
    return {row.id: row async for row in rows(journal, where) if row.status in statuses}


def unreadable_rows(journal: Journal, where: JobFilter) -> AsyncIterator[JobRow]:
    """Those of which nobody can say whether a filter by metadata means them."""
    return rows(journal, replace(where, metadata={}, unreadable=True))


def note_unreadable(jobs: Collection[str]) -> int:
    """A line for each, and the exit code."""
    for job in jobs:
        note(f"error: {job}: metadata: no JSON object in the job list; `engine-admin db check` writes the list anew")
    return 1 if jobs else 0


async def row_of(journal: Journal, job: str) -> JobRow | None:
    return next((row for row in await journal.jobs(JobFilter(prefix=job), limit=PAGE) if row.id == job), None)
