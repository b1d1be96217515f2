"""Who reads what logs named at an earlier moment holds sweeps off meanwhile: a backup does.

A hold is a mark with the time of its end, so that one whose holder was killed ends by itself. It is a courtesy: one
that could not be marked, or came while a sweep was under way, keeps nobody from sweeping. The holder has to look.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from store.blobs.port import Blobs
from store.errors import StoreUnavailable

HOLD = "hold-"
HOLD_S = 600.0


def held_until(blobs: Blobs) -> float:
    """When the last hold ends, or has ended. Raises StoreUnavailable."""
    return max([_end(mark) for mark in blobs.marks() if mark.startswith(HOLD)], default=0.0)


def forget_ended(blobs: Blobs, now: float) -> None:
    """Of holders that were killed. Raises StoreUnavailable."""
    for mark in blobs.marks():
        if mark.startswith(HOLD) and _end(mark) < now:
            blobs.unmark(mark)


@contextmanager
def held(blobs: Blobs, now: Callable[[], float]) -> Iterator[Callable[[], None]]:
    """No sweep begins until the block is left. What it gives is to be called every few minutes."""
    token = secrets.token_hex(8)
    marked = ""

    def renew() -> None:
        nonlocal marked
        if marked and _end(marked) - now() > HOLD_S / 2:
            return
        before, following = marked, f"{HOLD}{now() + HOLD_S:.0f}-{token}"
        with suppress(StoreUnavailable):  # who may only read there goes without
            blobs.mark(following)
            marked = following
            if before:
                blobs.unmark(before)

    renew()
    try:
        yield renew
    finally:
        with suppress(StoreUnavailable):
            if marked:
                blobs.unmark(marked)


def _end(mark: str) -> float:
    end = mark.removeprefix(HOLD).partition("-")[0]
    return float(end) if end.isdecimal() else 0.0
