"""Events of older releases, in today's words. The log stays as it was written: hashes cover it.

An event whose meaning changes gets a new tag, and here a function from the old body to the new one. A body comes as
plain maps, lists and values. Functions follow one another until the tag is one of today's.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

Body = dict[str, Any]
Upcast = Callable[[Body], tuple[str, Body]]
"""From the body of an old event to the tag and the body that say the same today."""

UPCASTS: Mapping[str, Upcast] = {}
"""By the old tag. No event of a release has changed its meaning so far."""


def upcast(type: str, body: bytes, upcasts: Mapping[str, Upcast] = UPCASTS) -> tuple[str, bytes]:
    """An event as today's code has it; one of today's comes back untouched. Raises msgspec.DecodeError."""
    if type not in upcasts:
        return type, body
    fields: Body = msgspec.msgpack.decode(body)
    while type in upcasts:
        type, fields = upcasts[type](fields)
    return type, msgspec.msgpack.encode(fields | {"type": type})
