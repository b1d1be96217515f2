"""`engine-admin jobs`: another course for one job: from an earlier step, from there with another request, elsewhere.

And what keeps such a step: pins.
"""

import argparse
from typing import Any

import msgspec

from cards.request import RequestChanges
from ops.admin.parser import command, entry, reason, shortly, whole
from ops.admin.verbs import engine_for
from ops.errors import BadSettings
from ops.settings import Settings
from ops.tables import show_one

WORDS = ("prompt", "negative_prompt", "size")
"""What is taken as it stands; everything else is JSON."""

ALLOWED = {
    "prompt": "a text",
    "negative_prompt": "a text",
    "seed": "a whole number",
    "steps": "a whole number",
    "guidance": "a number such as 7.5",
    "size": "a width and a height such as 832x480",
    "frames": "a whole number",
    "preview_every": "a whole number",
    "priority": "a whole number",
    "metadata": 'an object of texts such as {"user": "ada"}',
    "strengths": "a list of numbers such as [0.8, 1.0], one for each LoRA of the job",
    "interceptors": 'an object of thresholds such as {"step_skip": 0.1}',
    "tenant": "a text",
    "deadline_s": "a number of seconds, or null",
}
"""What each field of a request takes."""

SHOWN_AS = {"strengths": "loras"}
"""What of a job says how it was set, where that is not its own name."""


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
        parser.add_argument("--reason", type=reason, default="", metavar="TEXT", help="for whoever reads the log")


async def _fork(arguments: argparse.Namespace, settings: Settings) -> int:
    changes = changes_of(arguments.set)
    async with engine_for(settings, arguments.job) as engine:
        job = await engine.act(arguments.job, "fork", at_step=arguments.at_step, set=changes)
    shown = ("id", "status", "parent", *(SHOWN_AS.get(name, name) for name in changes))
    show_one({name: job[name] for name in shown}, as_json=arguments.json)
    return 0


def changes_of(entries: list[tuple[str, str]]) -> dict[str, Any]:
    """Raises BadSettings, which names the field, the value and what is allowed."""
    changes: dict[str, Any] = {}
    for name, value in entries:
        if name not in ALLOWED:
            raise BadSettings(f"set: there is no field {name!r} to set; there are: {', '.join(ALLOWED)}")
        if name in changes:
            raise BadSettings(f"set: {name} is there twice, as {shortly(value)!r} too: give it one value")
        changes[name] = _value(name, value)
    return changes


def _value(name: str, value: str) -> Any:
    try:
        decoded = value if name in WORDS else msgspec.json.decode(value)
        msgspec.convert({name: decoded}, RequestChanges)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # and ValidationError, which is one of the first
        raise BadSettings(f"set: {name}: {shortly(value)!r} is not {ALLOWED[name]}") from error
    return decoded


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
