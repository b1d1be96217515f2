"""`engine-admin jobs`: another course for one job: from an earlier step, from there with another request, elsewhere.

And what keeps such a step: pins.
"""

import argparse
from typing import Any

import msgspec

from cards.request import RequestChanges
from ops.admin.parser import command, entry, whole
from ops.admin.verbs import engine_for
from ops.errors import BadSettings
from ops.settings import Settings
from ops.tables import show_one

WORDS = ("prompt", "negative_prompt")
"""What is taken as it stands; everything else is JSON."""


def add(jobs: Any) -> None:
    fork = command(jobs, "fork", _fork, "a new job that shares a job's first steps, and goes on from there")
    fork.add_argument("job")
    fork.add_argument("--at-step", type=whole, required=True, metavar="K", help="how many, over the whole program")
    fork.add_argument("--set", type=entry, action="append", default=[], metavar="FIELD=VALUE", help="in the new one")
    rewind = command(jobs, "rewind", _rewind, "take a job back to where it was after some of its steps")
    rewind.add_argument("job")
    rewind.add_argument("--to-step", type=whole, required=True, metavar="K", help="how many, over the whole program")
    pin = command(jobs, "pin", _pin, "keep what a job needs to be forked, rewound or replayed from a step")
    unpin = command(jobs, "unpin", _unpin, "leave a step of a job to retention again")
    for parser in (pin, unpin):
        parser.add_argument("job")
        parser.add_argument("--step", type=whole, required=True, metavar="K", help="how many, over the whole program")
    migrate = command(jobs, "migrate", _migrate, "move a job to a pool or an engine after the step that it is in")
    migrate.add_argument("job")
    migrate.add_argument("--to", required=True, metavar="PLACE", help="pool:NAME, engine:NAME, or a name of either")
    migrate.add_argument("--dry-run", action="store_true", help="only say what would happen")
    for parser in (rewind, pin, migrate):
        parser.add_argument("--reason", default="", metavar="TEXT", help="for whoever reads the log")


async def _fork(arguments: argparse.Namespace, settings: Settings) -> int:
    changes = changes_of(arguments.set)
    async with engine_for(settings, arguments.job) as engine:
        job = await engine.act(arguments.job, "fork", at_step=arguments.at_step, set=changes)
    shown = ("id", "status", "parent", *changes)
    show_one({name: job[name] for name in shown}, as_json=arguments.json)
    return 0


def changes_of(entries: list[tuple[str, str]]) -> dict[str, Any]:
    """Raises BadSettings, which names the field."""
    try:
        changes = {name: value if name in WORDS else msgspec.json.decode(value) for name, value in entries}
        msgspec.convert(changes, RequestChanges)
    except msgspec.DecodeError as error:  # and ValidationError, which is one
        fields = ", ".join(RequestChanges.__struct_fields__)
        raise BadSettings(f"set: {error}; there are: {fields}") from error
    return changes


async def _rewind(arguments: argparse.Namespace, settings: Settings) -> int:
    async with engine_for(settings, arguments.job) as engine:
        done = await engine.act(arguments.job, "rewind", to_step=arguments.to_step, reason=arguments.reason)
    show_one(done, as_json=arguments.json)
    return 0


async def _pin(arguments: argparse.Namespace, settings: Settings) -> int:
    async with engine_for(settings, arguments.job) as engine:
        done = await engine.act(arguments.job, "pin", step=arguments.step, reason=arguments.reason)
    show_one(done, as_json=arguments.json)
    return 0


async def _unpin(arguments: argparse.Namespace, settings: Settings) -> int:
    async with engine_for(settings, arguments.job) as engine:
        done = await engine.act(arguments.job, "unpin", step=arguments.step)
    show_one(done, as_json=arguments.json)
    return 0


async def _migrate(arguments: argparse.Namespace, settings: Settings) -> int:
    async with engine_for(settings, arguments.job) as engine:
        moved = await engine.act(
            arguments.job, "migrate", to=arguments.to, dry_run=arguments.dry_run, reason=arguments.reason
        )
    show_one(moved, as_json=arguments.json)
    return 0
