"""Who waits for news of which job or request. A wake-up carries nothing: what happened is read from the log."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Hub:
    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self.closed = False
        """Nothing will happen any more: the engine has stopped."""

    @contextmanager
    def listen(self, job: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever something durable has happened to the job."""
        news = asyncio.Event()
        self._waiting.setdefault(job, set()).add(news)
        try:
            yield news
        finally:
            self._waiting[job].discard(news)
            if not self._waiting[job]:
                del self._waiting[job]

    def listeners(self) -> int:
        return sum(map(len, self._waiting.values()))

    def wake(self, job: str) -> None:
        for news in self._waiting.get(job, ()):
            news.set()

    def close(self) -> None:
        self.closed = True
        for job in self._waiting:
            self.wake(job)
