"""What the commands' parsers share."""

import argparse
import re
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from ops.cli import settings_flags
from ops.settings import Settings

Command = Callable[[argparse.Namespace, Settings], Coroutine[Any, Any, int]]

UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as all commands do."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; see {self.prog} --help\n")


def group(groups: Any, name: str, what: str) -> Any:
    parser = groups.add_parser(name, help=what)
    return parser.add_subparsers(required=True, metavar="COMMAND")


def command(group: Any, name: str, run: Command, what: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = group.add_parser(name, help=what, description=what)
    parser.add_argument("--json", action="store_true", help="for programs")
    settings_flags(parser, "data", "store", "blobs", "families")
    parser.set_defaults(run=run)
    return parser


SHOWN = 60
"""Characters of what was given that are said back."""

REASON_LIMIT = 1000

MOST = 2**63 - 1
"""More than any table has rows, and as much as a database takes."""


def positive(text: str) -> int:
    return _number(text, 1)


def whole(text: str) -> int:
    return _number(text, 0)


def _number(text: str, least: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) < MOST):
        raise argparse.ArgumentTypeError(f"{shortly(text)!r} is not a number from {least} up")
    return int(text)


LONGEST_S = 36_500 * 86_400
"""A hundred years: every database and every clock can count so far."""


def duration(text: str) -> float:
    """In seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text, re.ASCII)
    seconds = float(found[1]) * UNIT_S[found[2]] if found is not None else LONGEST_S + 1
    if seconds > LONGEST_S:
        raise argparse.ArgumentTypeError(f"{shortly(text)!r} is no time such as 90s, 15m, 2h or 7d, up to 36500d")
    return seconds


def some_time(text: str) -> float:
    """In seconds, more than none."""
    if not (seconds := duration(text)):
        raise argparse.ArgumentTypeError(f"{shortly(text)!r} is no time at all: give one such as 30s")
    return seconds


def reason(text: str) -> str:
    if len(text) > REASON_LIMIT or "\0" in text:
        raise argparse.ArgumentTypeError(f"it has {len(text)} characters: up to {REASON_LIMIT} are kept, and no NUL")
    return text


def shortly(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def entry(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{shortly(text)!r} is not KEY=VALUE")
    return key, value
