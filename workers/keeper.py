"""What steps made is stored while the next one runs; nobody hears of it before it is."""

from collections.abc import Callable
from queue import Queue

from cards import wire
from workers.execute import Answer

AT_ONCE = 2
"""Answers that may wait to be stored: with slow disks the executor waits too, or memory would fill up."""

Said = Answer | list[bytes]
"""A step's answer, or the frames of another message."""


class Keeper:
    """What the executor says leaves in its order, each answer once all that it names is stored."""

    def __init__(self, keep: Callable[[Answer], Answer], send: Callable[[list[bytes]], None]) -> None:
        self._keep = keep
        self._send = send
        self._queue: Queue[Said | None] = Queue(AT_ONCE)

    def say(self, said: Said) -> None:
        """The executor's thread. What there is nothing to store of and nothing to wait for leaves at once."""
        waits = self._queue.unfinished_tasks or (isinstance(said, Answer) and said.blobs)
        if waits:
            self._queue.put(said)
        else:
            self._let_out(said)

    def settle(self) -> None:
        """Return once all that was said has left."""
        self._queue.join()

    def close(self) -> None:
        self._queue.put(None)

    def run(self) -> None:
        """The keeper's thread, until `close`."""
        while (said := self._queue.get()) is not None:
            self._let_out(said)
            self._queue.task_done()

    def _let_out(self, said: Said) -> None:
        if isinstance(said, Answer):
            kept = self._keep(said)
            said = [wire.encode(kept.result), *kept.frames]
        self._send(said)
