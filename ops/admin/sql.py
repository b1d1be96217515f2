"""`engine-admin sql`: a question of one's own."""

import argparse
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import anyio.to_thread

from engine.clock import WallClock
from ops.admin.parser import command, positive, some_time
from ops.errors import BadSettings
from ops.settings import Settings
from ops.tables import note, show
from store.ask import ask
from store.errors import BadQuestion

PLAIN = (str, int, float, bool, type(None), list, dict)


def add(nouns: Any) -> None:
    parser = command(nouns, "sql", _sql, "ask the store with one SELECT; nothing can be changed")
    parser.add_argument("statement")
    parser.add_argument("--limit", type=positive, default=1000, help="rows to show (default 1000)")
    parser.add_argument("--timeout", type=some_time, default=30.0, metavar="30s", help="how long it may take")


async def _sql(arguments: argparse.Namespace, settings: Settings) -> int:
    def asked() -> Any:
        return ask(
            settings.store_url,
            arguments.statement,
            limit=arguments.limit,
            timeout_s=arguments.timeout,
            monotonic=WallClock().monotonic,
        )

    try:
        answered = await anyio.to_thread.run_sync(asked)
    except BadQuestion as error:
        raise BadSettings(f"statement: {error}") from error
    columns = _each_its_own(answered.columns)
    rows = [dict(zip(columns, map(_plain, row), strict=True)) for row in answered.rows]
    show(rows, as_json=arguments.json)
    if answered.more:
        note(f"there are more than {arguments.limit} rows: give a higher --limit")
    return 0


def _each_its_own(names: Sequence[str]) -> list[str]:
    """Columns of one name are told apart by a number."""
    seen: Counter[str] = Counter()
    own = []
    for name in names:
        seen[name] += 1
        own.append(name if seen[name] == 1 else f"{name}:{seen[name]}")
    return own


def _plain(value: object) -> object:
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value if isinstance(value, PLAIN) else str(value)
