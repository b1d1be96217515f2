"""An event as it is shown, also one that cannot be read."""

from typing import Any

import msgspec

from engine import events as facts
from engine.errors import HistoryError
from store.journal import Event


def told(event: Event, *columns: str) -> dict[str, Any]:
    """Some of its columns, and what it says. Other streams (`ask/`, `parity/`, `pool/`) have their own words."""
    try:
        ours = event.stream.startswith("job/")
        data: Any = msgspec.to_builtins(facts.decode(event) if ours else msgspec.msgpack.decode(event.body))
    except (HistoryError, msgspec.DecodeError, RecursionError) as error:
        data = {"unreadable": str(error)}
    return {name: getattr(event, name) for name in columns} | {"data": data}
