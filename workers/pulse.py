"""Another rank's sign of life: a byte through a pipe, again and again, by a thread that does nothing else.

Whether a rank answers is known only once it is asked for a step. That it is frozen is to be known before.
"""

import os
import select
import threading
from contextlib import suppress

MISSED = 5
"""Beats in a row that a rank may miss."""


def beat(pipe: int, every_s: float) -> None:
    """Give the sign from now on, for as long as this process lives."""

    def run() -> None:
        pause = threading.Event()
        with suppress(BrokenPipeError):  # rank 0 is gone, and this process is about to be
            while True:
                os.write(pipe, b".")
                pause.wait(every_s)

    threading.Thread(target=run, name="pulse", daemon=True).start()


def watch(pipe: int, every_s: float) -> str:
    """Return why there are no more. A rank that has not begun is loading, and may take as long as it likes."""
    poller = select.poll()
    poller.register(pipe, select.POLLIN)
    within_s: float | None = None
    while poller.poll(None if within_s is None else within_s * 1000):
        if not os.read(pipe, 4096):
            return ""
        within_s = MISSED * every_s
    return f"has given no sign of life for {within_s:g} s"
