"""`engine-admin leases`: the engines that share a store, and how long others leave their jobs alone."""

import argparse
from typing import Any

from engine import share
from engine.check import rows
from ops.admin.parser import command
from ops.errors import OpsError
from ops.settings import Settings
from ops.tables import note, show, show_one
from store.journal import EngineRow, JobFilter, Journal
from store.open import open_journal

NO_LEASES = "a SQLite store has no leases: one engine holds the file, for as long as it lives"


def add(leases: Any) -> None:
    command(leases, "list", _list, "engines with what their leases have left, and the open jobs that they own")
    breaking = command(leases, "break", _break, "end the lease of an engine that is gone; a live one takes a new one")
    breaking.add_argument("engine")


async def _list(arguments: argparse.Namespace, settings: Settings) -> int:
    async with open_journal(settings.store_url, writable=False) as journal:
        show([await _lease(journal, row) for row in await journal.engines()], as_json=arguments.json)
        if not journal.shared:
            note(NO_LEASES)
    return 0


async def _lease(journal: Journal, row: EngineRow) -> dict[str, Any]:
    owned = [job async for job in rows(journal, JobFilter(owner=row.name, open=True))]
    return {
        "engine": row.name,
        "url": row.url,
        "left_s": round(row.left_s, 3),
        "live": row.left_s > 0,
        "models": share.names(row),
        "jobs": len(owned),
    }


async def _break(arguments: argparse.Namespace, settings: Settings) -> int:
    async with open_journal(settings.store_url, writable=False) as journal:
        if not journal.shared:
            raise OpsError(f"engine: {NO_LEASES}")
        there = [row.name for row in await journal.engines()]
    if arguments.engine not in there:
        names = ", ".join(there) or "none"
        raise OpsError(f"engine: {arguments.engine!r} has no lease; there are: {names}")
    async with open_journal(settings.store_url) as journal:
        ended = await journal.end_lease(arguments.engine)
    show_one({"engine": arguments.engine, "outcome": "ended" if ended else "had ended"}, as_json=arguments.json)
    return 0
