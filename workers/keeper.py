"""What steps made is stored while the next one runs; nobody hears of it before it is."""

from collections.abc import Callable, Sequence
from queue import Queue

from cards.wire import Hello, Released, WorkerMessage
from workers.execute import Answer

AT_ONCE = 2
"""Batches of answers that may wait to be stored: with slow disks the executor waits too, or memory would fill up."""

Said = Sequence[Answer] | Released | Hello
"""The answers of steps that were executed together, or another message."""


class Keeper:
    """What the executor says leaves in its order, each answer once all that it names is stored."""

    def __init__(
        self, keep: Callable[[Answer], Answer], send: Callable[[WorkerMessage, Sequence[bytes]], None]
    ) -> None:
        self._keep = keep
        self._send = send
        self._queue: Queue[Said | None] = Queue(AT_ONCE)

    @property
    def is_behind(self) -> bool:
        """Whether an answer is still here."""
        return bool(self._queue.unfinished_tasks)

    def say(self, said: Said) -> None:
        """The executor's thread. What there is nothing to store of and nothing to wait for leaves at once."""
        if self.is_behind or (isinstance(said, Sequence) and any(answer.blobs for answer in said)):
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
        if not isinstance(said, Sequence):
            self._send(said, ())
            return
        for answer in said:
            kept = self._keep(answer)
            self._send(kept.result, kept.frames)
