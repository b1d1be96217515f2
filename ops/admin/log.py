"""`engine-admin log`: the events of a store, one after the other."""

import argparse
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, Any

import anyio
import msgspec

from engine.actor import stream
from engine.audit import Audit, audit, audit_stream, everything
from engine.check import history
from engine.errors import JobNotFound
from ops.admin.parser import command, positive, whole
from ops.admin.telling import told
from ops.errors import BadSettings
from ops.settings import Settings
from ops.tables import note, show, show_json, show_line
from store.journal import Event, Journal
from store.open import open_journal

POLL_S = 0.5

COLUMNS = ("position", "stream", "version", "at", "type")


def add(log: Any) -> None:
    tail = command(log, "tail", _tail, "the newest events, or those after a position")
    tail.add_argument("-f", "--follow", action="store_true", help="and those to come, until interrupted")
    tail.add_argument("--after", type=whole, metavar="POSITION")
    tail.add_argument("--stream", metavar="NAME", help="only of this one, such as job/ID")
    tail.add_argument("-n", "--limit", type=positive, default=20, help="how many of the newest (default 20)")
    verify = command(log, "verify", _verify, "follow the hash chains of all streams, or of one job's")
    verify.add_argument("job", nargs="?")
    export = command(log, "export", _export, "all events as JSON lines, bytes in base64")
    export.add_argument("--after", type=whole, default=0, metavar="POSITION")
    export.add_argument("--stream", metavar="NAME")
    export.add_argument("-o", "--out", type=Path, metavar="FILE", help="instead of the screen")


async def _tail(arguments: argparse.Namespace, settings: Settings) -> int:
    async with open_journal(settings.store_url, writable=False) as journal:
        after = arguments.after or 0
        events = _events(journal, arguments.stream, after)
        if arguments.after is None:
            events = _newest(journal, arguments.stream, arguments.limit)
        while True:
            async for event in events:
                after = event.position
                show_line(told(event, *COLUMNS), as_json=arguments.json)
            if not arguments.follow:
                return 0
            await anyio.sleep(POLL_S)
            events = _events(journal, arguments.stream, after)


def _events(journal: Journal, name: str | None, after: int) -> AsyncIterator[Event]:
    return everything(journal, after) if name is None else history(journal, name, after)


async def _newest(journal: Journal, name: str | None, limit: int) -> AsyncIterator[Event]:
    """Positions have holes, so it may take a few looks further and further back."""
    last = 0 if name is not None else (await journal.statistics_of_store()).last_position
    back = limit
    while True:
        after = max(0, last - back)
        found = deque([event async for event in _events(journal, name, after)], maxlen=limit)
        if len(found) == limit or after == 0:
            break
        back *= 4
    for event in found:
        yield event


async def _verify(arguments: argparse.Namespace, settings: Settings) -> int:
    async with open_journal(settings.store_url, writable=False) as journal:
        found = await (audit(journal) if arguments.job is None else _audit_job(journal, arguments.job))
    if arguments.json:
        show_json(found)
    elif found.broken:
        show([{"stream": name, "problem": problem} for name, problem in found.broken.items()], as_json=False)
    else:
        print(f"sound: {found.events} events in {found.streams} streams")
    return 1 if found.broken else 0


async def _audit_job(journal: Journal, job: str) -> Audit:
    name = stream(job)
    problem = await audit_stream(journal, name)
    count = len([event async for event in history(journal, name)])
    if not count and problem is None:
        raise JobNotFound(job)
    return Audit(1, count, {} if problem is None else {name: problem})


async def _export(arguments: argparse.Namespace, settings: Settings) -> int:
    count = 0
    with _opened(arguments.out) as file:
        async with open_journal(settings.store_url, writable=False) as journal:
            async for event in _events(journal, arguments.stream, arguments.after):
                print(msgspec.json.encode(event).decode(), file=file)
                count += 1
    note(f"{count} events")
    return 0


def _opened(out: Path | None) -> AbstractContextManager[IO[str] | None]:
    try:
        return nullcontext() if out is None else out.open("w")
    except OSError as error:
        raise BadSettings(f"out: cannot write {out}: {error.strerror}; choose another file") from error
