"""A peer in its own environment: a child process that answers a line of JSON with a line of JSON."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio.to_thread
import msgspec

from ops.bench.processes import ROOT
from ops.bench.store.runs import Contender, Run

PYTHON = ROOT / ".venv-peers" / "bin" / "python"
PROGRAMS = Path(__file__).parent / "peers"


class Peer:
    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def contender(self, jobs: int, seconds: float) -> Contender:
        async def run() -> Run:
            return await anyio.to_thread.run_sync(self._ask, {"jobs": jobs, "seconds": seconds})

        return run

    def _ask(self, question: dict[str, float]) -> Run:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(question) + b"\n")
        self._process.stdin.flush()
        return msgspec.json.decode(self._process.stdout.readline(), type=Run)


def installed() -> bool:
    return PYTHON.exists()


@contextmanager
def peer(program: str, url: str) -> Iterator[Peer]:
    """One of `peers/`, with a store of its own."""
    command = [str(PYTHON), str(PROGRAMS / f"{program}.py"), url]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield Peer(process)
    finally:
        process.kill()
        process.wait()
