"""`engine-admin`: what operators do with jobs and stores. Every command takes --json."""

import argparse
import functools
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import anyio
import msgspec
from rich.console import Console

from engine import check, views
from engine import events as facts
from engine.actor import restore, stream
from engine.clock import WallClock
from engine.errors import EngineError, JobNotFound
from engine.job import Job
from ops.cli import run_command, settings_flags, settings_from
from ops.doctor import examine
from ops.errors import OpsError
from ops.offline import cancel_offline
from ops.remote import connect
from ops.replay import verify_job
from ops.settings import Settings
from ops.tables import show, show_json, show_one
from ops.version import VERSION
from ops.whereabouts import running_engine
from store import open as stores
from store.errors import StoreLocked
from store.journal import JobFilter
from store.open import open_journal

Command = Callable[[argparse.Namespace, Settings], Coroutine[Any, Any, int]]


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _parser().parse_args(argv)
    run_command(functools.partial(_run, arguments))


def _run(arguments: argparse.Namespace) -> None:
    try:
        code = anyio.run(arguments.run, arguments, settings_from(arguments))
    except EngineError as error:
        raise OpsError(str(error)) from error
    sys.exit(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="engine-admin", description="Inspect, cancel, replay and check jobs.")
    parser.add_argument("--version", action="version", version=VERSION)
    groups = parser.add_subparsers(required=True, metavar="COMMAND")
    jobs = _group(groups, "jobs", "list, show, events, cancel")
    listing = _command(jobs, "list", _list, "the newest jobs")
    listing.add_argument("--status", choices=sorted(set(views.STATUS.values())))
    listing.add_argument("--model")
    listing.add_argument("--after", metavar="JOB", help="continue a listing after this job")
    listing.add_argument("--limit", type=_positive, default=100)
    for name, run, what in (
        ("show", _show, "one job"),
        ("events", _events, "what has happened to a job"),
        ("cancel", _cancel, "cancel a job, beside a live engine or without one"),
    ):
        _command(jobs, name, run, what).add_argument("job")
    replays = _group(groups, "replay", "verify")
    _command(replays, "verify", _verify, "execute a job's log again and compare every byte").add_argument("job")
    db = _group(groups, "db", "upgrade, check")
    _command(db, "upgrade", _upgrade, "bring the store's schema up to this version")
    _command(db, "check", _check, "fold every log and compare; rebuilds the job list if no engine runs")
    _command(groups, "doctor", _doctor, "what is wrong with this machine or this store")
    return parser


async def _list(arguments: argparse.Namespace, settings: Settings) -> int:
    async with open_journal(settings.store_url, writable=False) as journal:
        rows = await journal.jobs(
            JobFilter(status=arguments.status, model=arguments.model), after=arguments.after, limit=arguments.limit
        )
    shown = [msgspec.to_builtins(row) for row in rows]
    show([{name: row[name] for name in row if name != "open"} for row in shown], as_json=arguments.json)
    return 0


async def _show(arguments: argparse.Namespace, settings: Settings) -> int:
    job = await _job(settings, arguments.job)
    show_one(msgspec.to_builtins(job) | {"status": views.status(job)}, as_json=arguments.json)
    return 0


async def _job(settings: Settings, job_id: str) -> Job:
    async with open_journal(settings.store_url, writable=False) as journal:
        loaded = await journal.load(stream(job_id))
    if loaded is None:
        raise JobNotFound(job_id)
    return restore(loaded).job


async def _events(arguments: argparse.Namespace, settings: Settings) -> int:
    async with open_journal(settings.store_url, writable=False) as journal:
        events = [event async for event in check.history(journal, stream(arguments.job))]
    if not events:
        raise JobNotFound(arguments.job)
    rows = [
        {
            "position": event.position,
            "version": event.version,
            "epoch": event.epoch,
            "at": event.at,
            "type": event.type,
            "data": msgspec.to_builtins(facts.decode(event)),
        }
        for event in events
    ]
    show(rows, as_json=arguments.json)
    return 0


async def _cancel(arguments: argparse.Namespace, settings: Settings) -> int:
    """A live engine is asked; without one, the log is written here."""
    there = running_engine(settings)
    if there is not None:
        async with connect(there.url) as remote:
            outcome = (await remote.cancel(arguments.job))["outcome"]
    else:
        outcome = await cancel_offline(settings, arguments.job)
    show_one({"job": arguments.job, "outcome": outcome}, as_json=arguments.json)
    return 0


async def _verify(arguments: argparse.Namespace, settings: Settings) -> int:
    with Console(stderr=True).status("loading") as status:
        verdict, changes = await verify_job(
            settings, arguments.job, lambda node, step: status.update(f"executing {node} {step}")
        )
    if arguments.json:
        show_json({"verdict": verdict, "equal": verdict.equal, "changes": changes})
    else:
        for change in changes:
            print(f"note: {change}")
        if verdict.pruned:
            print(f"note: the bytes of {verdict.pruned} tensors are not stored any more; they were only made again")
        print(_sentence(verdict.job, verdict.steps, verdict.tensors, verdict.difference))
    return 0 if verdict.equal else 1


def _sentence(job: str, steps: int, tensors: int, difference: Any) -> str:
    if difference is None:
        return f"equal: {steps} steps of {job} executed again, {tensors} tensors with the digests in the log"
    at = f"{difference.node} step {difference.step}, {difference.what}"
    return f"differs at {at}: {difference.problem}\n  log   {difference.logged}\n  found {difference.found}"


async def _upgrade(arguments: argparse.Namespace, settings: Settings) -> int:
    await anyio.to_thread.run_sync(stores.upgrade, settings.store_url)
    revision, _ = stores.revisions(settings.store_url)
    show_one({"store": settings.store_url, "revision": revision}, as_json=arguments.json)
    return 0


async def _check(arguments: argparse.Namespace, settings: Settings) -> int:
    async with open_journal(settings.store_url, writable=False) as journal:
        report = await check.check(journal)
    rebuilt = await _rebuild(settings) if report.problems else False
    facts_found = {
        "streams": report.streams,
        "events": report.events,
        "problems": report.problems,
        "job_list_rebuilt": rebuilt,
    }
    show_one(facts_found, as_json=arguments.json)
    return 1 if report.problems else 0


async def _rebuild(settings: Settings) -> bool:
    """Write the job list anew from the log, unless an engine is at work on it."""
    try:
        async with open_journal(settings.store_url) as journal:
            await journal.replace_rows((await check.check(journal)).rows)
    except StoreLocked:
        return False
    return True


async def _doctor(arguments: argparse.Namespace, settings: Settings) -> int:
    findings = await examine(settings, WallClock())
    show([msgspec.to_builtins(finding) for finding in findings], as_json=arguments.json)
    return 1 if any(finding.level == "wrong" for finding in findings) else 0


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 up")
    return int(text)


def _group(groups: Any, name: str, what: str) -> Any:
    parser = groups.add_parser(name, help=what)
    return parser.add_subparsers(required=True, metavar="COMMAND")


def _command(group: Any, name: str, run: Command, what: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = group.add_parser(name, help=what)
    parser.add_argument("--json", action="store_true", help="for programs")
    settings_flags(parser, "data", "store", "blobs", "families")
    parser.set_defaults(run=run)
    return parser


if __name__ == "__main__":
    main()
