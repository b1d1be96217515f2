"""What happened in a simulation, line by line, and a digest of it: two runs of a seed must have the same one."""

import logging
from collections.abc import Callable

from blake3 import blake3

from tests.simulation.loop import SimLoop


class Trace:
    """`show` gets every line as it comes."""

    def __init__(self, loop: SimLoop, show: Callable[[str], None] | None = None) -> None:
        self._loop = loop
        self._show = show
        self._digest = blake3()
        self.lines = 0

    def __call__(self, who: str, what: str) -> None:
        line = f"{self._loop.time():9.4f} {self._loop.turns:7d}  {who:<12} {what}"
        self.lines += 1
        self._digest.update(line.encode())
        if self._show is not None:
            self._show(line)

    def digest(self) -> str:
        return self._digest.hexdigest()[:32]


class TraceLog(logging.Handler):
    """The engine's own log, as lines of the trace."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def emit(self, record: logging.LogRecord) -> None:
        job = getattr(record, "job", "")
        self._trace("log", f"{job} {record.getMessage()}".strip())
