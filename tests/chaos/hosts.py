"""Machines, as far as a process needs one: what runs on it is started again whenever it has ended."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import httpx
import psutil
from msgspec import Struct

from ops.bench.processes import command, environment

LOOK_S = 0.02
PAUSE_S = 0.2
"""Before another start, at least."""

NO_DATABASE = "error: connection"
"""How the last words of a process begin that started while the database was down, and so ended."""


class Ended(Struct, frozen=True):
    """How a process came to its end, and when."""

    pid: int
    how: str
    at: float


class Kept:
    """A process in a session of its own. One that ends though nobody ended it is a problem, once it was up."""

    def __init__(self, name: str, arguments: Sequence[str], settings: dict[str, object], log: Path) -> None:
        self.name = name
        self.problems: list[str] = []
        self.pids: set[int] = set()
        self.ended: list[Ended] = []
        self.up = False
        self.process: subprocess.Popen[bytes] | None = None
        self._command = command(*arguments)
        self._environment = environment(settings)
        self._log = log
        self._to_end = False
        self._down_until = 0.0

    async def keep(self) -> None:
        """Until cancelled; then its whole tree is killed."""
        try:
            while True:
                await anyio.sleep(max(PAUSE_S, self._down_until - time.monotonic()))
                await self._live()
        finally:
            self._signal_all(signal.SIGKILL)
            if self.process is not None:
                self.process.wait()

    def kill(self, down_s: float, *, tree: bool) -> None:
        self._end("kill", down_s)
        self._signal_all(signal.SIGKILL) if tree else self.send(signal.SIGKILL)

    def terminate(self, down_s: float) -> None:
        self._end("terminate", down_s)
        self.send(signal.SIGTERM)

    def send(self, which: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(which)

    def children(self) -> list[psutil.Process]:
        if self.process is None or self.process.poll() is not None:
            return []
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    async def is_up(self) -> bool:
        return True

    async def _live(self) -> None:
        self._to_end = self.up = False
        self.process = process = self._start()
        self.pids.add(process.pid)
        while (code := process.poll()) is None:
            self.up = self.up or await self.is_up()
            await anyio.sleep(LOOK_S)
        self._judge(code)

    def _start(self) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as log:
            return subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )

    def _judge(self, code: int) -> None:
        *_, last = self.log().splitlines() or [""]
        if self._to_end:
            found_none = code == 1 and not self.up and last.startswith(NO_DATABASE)
            if code not in (0, -signal.SIGKILL, -signal.SIGTERM) and not found_none:
                self.problems.append(f"{self.name} was told to end, and did with {code}: {last}")
        elif self.up:
            self.problems.append(f"{self.name} ended by itself with {code}: {last}")

    def _end(self, how: str, down_s: float) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self._down_until = time.monotonic() + down_s
        if self.up and not self._to_end:
            self.ended.append(Ended(self.process.pid, how, time.time()))
        self._to_end = True

    def _signal_all(self, which: signal.Signals) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, which)


class Host(Kept):
    """An engine with its own workers, at a URL that stays the same."""

    def __init__(self, name: str, folder: Path, **settings: object) -> None:
        self.port, self.workers_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        data = folder / "disk" / name
        common = {"families": "tests.toy", "threads": 1, "pool": name, "lease_s": 2, "silent_s": 1, "data": data}
        self.settings: dict[str, object] = common | settings
        at = {"port": self.port, "listen_workers": f"tcp://127.0.0.1:{self.workers_port}", "grace_s": 5}
        super().__init__(name, ["serve"], self.settings | at, folder / f"{name}.log")

    async def keep(self) -> None:
        async with httpx.AsyncClient(timeout=1.0, trust_env=False) as self._http:
            await super().keep()

    async def is_up(self) -> bool:
        try:
            return (await self._http.get(f"{self.url}/livez")).is_success
        except httpx.HTTPError:
            return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port
