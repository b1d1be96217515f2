"""`engine-admin workers`: those of the live engines, which alone know them."""

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from ops.admin.parser import command, reason
from ops.errors import NoEngine, OpsError
from ops.live import Engines, live_engines, reached
from ops.remote import Remote
from ops.settings import Settings
from ops.tables import show, show_one, size
from store.open import open_journal

RESTS = {
    "sleep": "have a worker unload components, all that are not named otherwise; a step that needs one loads it again",
    "wake": "have a worker load components now, as far as it has room",
}


def add(workers: Any) -> None:
    command(workers, "list", _list, "the workers of all live engines")
    drain = command(workers, "drain", _drain, "give a worker no more work: it leaves after the step that it runs")
    drain.add_argument("worker")
    fence = command(workers, "fence", _fence, "give a worker up at once: what it still says decides nothing")
    fence.add_argument("worker")
    fence.add_argument("--reason", type=reason, default="", metavar="TEXT", help="for the log")
    for verb, text in RESTS.items():
        rest = command(workers, verb, partial(_rest, verb), text)
        rest.add_argument("worker")
        rest.add_argument("--component", action="append", default=[], metavar="NAME", help="of these only")
        rest.add_argument("--model", action="append", default=[], metavar="NAME", help="of these models only")


async def _list(arguments: argparse.Namespace, settings: Settings) -> int:
    async with _engines(settings) as engines:
        rows = [
            {"engine": name} | {field: worker[field] for field in worker if field != "object"}
            for name, remote in engines.all().items()
            for worker in await remote.workers()
        ]
    show(rows if arguments.json else [_in_short(row) for row in rows], as_json=arguments.json)
    return 0


def _in_short(worker: dict[str, Any]) -> dict[str, Any]:
    """With what its weights take, its caches keep and others gave it in one number each, if its engine says them."""
    weights, resident, fetched = worker.pop("weights", {}), worker.pop("resident", []), worker.pop("fetched", {})
    loaded = sum(weights[name]["nbytes"] for name in resident)
    kept = sum(use["nbytes"] for name, use in worker.pop("caches", {}).items() if name != "weights")
    numbers = {"weights": loaded, "kept": kept, "fetched": fetched.get("nbytes", 0)}
    return worker | {"resident": ", ".join(resident)} | {name: size(nbytes) for name, nbytes in numbers.items()}


async def _rest(verb: str, arguments: argparse.Namespace, settings: Settings) -> int:
    async with _engines(settings) as engines:
        remote = await _engine_of(engines, arguments.worker)
        told = await remote.dismiss(arguments.worker, verb, components=arguments.component, models=arguments.model)
        show_one(told, as_json=arguments.json)
    return 0


async def _drain(arguments: argparse.Namespace, settings: Settings) -> int:
    async with _engines(settings) as engines:
        remote = await _engine_of(engines, arguments.worker)
        show_one(await remote.dismiss(arguments.worker, "drain"), as_json=arguments.json)
    return 0


async def _fence(arguments: argparse.Namespace, settings: Settings) -> int:
    async with _engines(settings) as engines:
        remote = await _engine_of(engines, arguments.worker)
        show_one(await remote.dismiss(arguments.worker, "fence", reason=arguments.reason), as_json=arguments.json)
    return 0


@asynccontextmanager
async def _engines(settings: Settings) -> AsyncIterator[Engines]:
    async with open_journal(settings.store_url, writable=False) as journal:
        live = await live_engines(settings, journal)
    if not live:
        raise NoEngine("no engine of this store answers, and workers join engines only: start one")
    async with reached(live) as engines:
        yield engines


async def _engine_of(engines: Engines, worker: str) -> Remote:
    there: list[str] = []
    for remote in engines.all().values():
        names = [one["id"] for one in await remote.workers()]
        if worker in names:
            return remote
        there += names
    raise OpsError(f"worker: {worker!r} is with no live engine; there are: {', '.join(there) or 'none'}")
