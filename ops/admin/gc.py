"""`engine-admin gc`: what may be forgotten, and forgetting it."""

import argparse
import functools
from typing import Any

from ops.admin.parser import command
from ops.admin.verbs import engines_of
from ops.settings import Settings
from ops.tables import show_one


def add(gc: Any) -> None:
    what = "the jobs, steps and bytes that retention lets go of (settings keep_*, purge_*, gc_grace_s of the engine)"
    plan = command(gc, "plan", functools.partial(_collect, True), f"count {what}")
    run = command(gc, "run", functools.partial(_collect, False), f"forget {what}")
    for parser in (plan, run):
        parser.add_argument("--take-over", action="store_true", help="other stores that had these blobs are gone")


async def _collect(dry_run: bool, arguments: argparse.Namespace, settings: Settings) -> int:
    async with engines_of(settings) as engines:
        collected = await engines.owning(None).collect(dry_run=dry_run, take_over=arguments.take_over)
    show_one(collected, as_json=arguments.json)
    return 0
