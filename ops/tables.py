"""What the commands print: a table for people, or JSON for programs."""

import sys
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDE = 1000
"""Characters of a line that no terminal breaks."""


def show(rows: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    """Rows with the same keys."""
    if as_json:
        show_json(rows)
        return
    table = Table(box=None, header_style="bold")
    for name in rows[0] if rows else ("nothing",):
        table.add_column(name, overflow="fold")  # an id that is cut short is of no use
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row.values()))  # a prompt is no markup
    wide = None if sys.stdout.isatty() else WIDE  # a program reads whole lines
    Console(soft_wrap=not sys.stdout.isatty(), width=wide).print(table)


def show_one(facts: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        show_json(facts)
        return
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        print(f"{name:<{width}}  {_cell(value)}")


def readable(facts: dict[str, Any]) -> dict[str, Any]:
    """The same with bytes in words: for people, who compare gigabytes."""
    return {name: size(value) if "bytes" in name else value for name, value in facts.items()}


def size(nbytes: int | None) -> str:
    """Decimal, as disks and models are sold."""
    if nbytes is None:
        return "-"
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if nbytes >= 10**power:
            return f"{nbytes / 10**power:.2f} {unit}"
    return f"{nbytes} B"


def show_json(value: object) -> None:
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def show_line(facts: dict[str, Any], *, as_json: bool) -> None:
    """One of many that come one by one; for programs as JSON lines."""
    if as_json:
        print(msgspec.json.encode(facts).decode(), flush=True)
    else:
        print("  ".join(_cell(value) for value in facts.values()), flush=True)


def note(text: str) -> None:
    """For people, and not part of what was asked for."""
    print(text, file=sys.stderr)
