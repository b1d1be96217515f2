"""Real engines and workers as processes of their own, for benchmarks and tests that kill them."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from ops.settings import Settings
from ops.whereabouts import running_engine

ROOT = Path(__file__).parents[2]
SHAPES = "cards.shapes.family"
PATIENCE_S = 180.0


class EngineProcess:
    """`engine serve` in a session of its own, so that its whole tree can be killed at once."""

    def __init__(self, data: Path, *, families: str = SHAPES, ready: bool = True, **settings: object) -> None:
        self.data = data
        data.mkdir(parents=True, exist_ok=True)
        self._log = (data / "engine.log").open("ab")
        settings = {"port": 0, "data": data, "families": families, "threads": 1} | settings
        self.process = subprocess.Popen(
            command("serve"), env=environment(settings), stderr=self._log, stdout=self._log, start_new_session=True
        )
        self._settings = Settings(data=data, store=settings.get("store"))  # type: ignore[arg-type]
        there = until(lambda: self._ended() or running_engine(self._settings), "the engine to answer")
        assert there is not True, f"the engine ended:\n{self.log()}"
        self.http = httpx.Client(base_url=there.url, timeout=PATIENCE_S)
        if ready:
            until(lambda: self.http.get("/readyz").is_success, "a worker to join")

    def submit(self, prompt: str, model: str = "toy", **fields: object) -> str:
        answer = self.http.post("/v1/jobs", json={"model": model, "prompt": prompt, "seed": 7} | fields)
        answer.raise_for_status()
        return str(answer.json()["id"])

    def job(self, job: str) -> Any:
        return self.http.get(f"/v1/jobs/{job}").json()

    def events(self, job: str) -> Any:
        return self.http.get(f"/v1/jobs/{job}/events", params={"limit": 1000}).json()["data"]

    def steps(self, job: str) -> list[tuple[str, int]]:
        return [(e["data"]["node"], e["data"]["step"]) for e in self.events(job) if e["type"] == "step_completed"]

    def checkpoints(self, job: str) -> Any:
        return self.http.get(f"/v1/jobs/{job}/checkpoints").json()

    def artifact(self, job: str, name: str) -> bytes:
        return self.http.get(f"/v1/jobs/{job}/artifacts/{name}").raise_for_status().content

    def ended(self, job: str) -> Any:
        return until(
            lambda: (found := self.job(job))["status"] in ("completed", "failed", "cancelled") and found,
            f"{job} to end",
        )

    def kill_tree(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self._close()

    def kill(self) -> None:
        """The engine alone: its workers must see to themselves."""
        self.process.kill()
        self._close()

    def terminate(self) -> int:
        self.process.terminate()
        code = self.process.wait(PATIENCE_S)
        self._close()
        return code

    def log(self) -> str:
        return (self.data / "engine.log").read_text()

    def _ended(self) -> bool:
        return self.process.poll() is not None

    def _close(self) -> None:
        self.process.wait(PATIENCE_S)
        self._log.close()
        if hasattr(self, "http"):
            self.http.close()


@contextlib.contextmanager
def engine(data: Path, **settings: Any) -> Iterator[EngineProcess]:
    running = EngineProcess(data, **settings)
    try:
        yield running
    finally:
        running.kill_tree()


@contextlib.contextmanager
def worker(data: Path, address: str, **settings: object) -> Iterator["subprocess.Popen[bytes]"]:
    """A worker that nobody supervises."""
    settings = {"data": data, "threads": 1} | settings
    process = subprocess.Popen(command("worker", "--connect", address), env=environment(settings))
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


def run(program: str, *arguments: object, **settings: object) -> "subprocess.CompletedProcess[str]":
    """A command to its end."""
    return subprocess.run(
        command(*map(str, arguments), program=program),
        env=environment(settings),
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )


def command(*arguments: str, program: str = "engine") -> list[str]:
    module = {"engine": "ops.cli", "engine-admin": "ops.admin"}[program]
    return [sys.executable, "-m", module, *arguments]


def environment(settings: dict[str, object]) -> dict[str, str]:
    named = {f"KEYFRAME_{name.upper()}": str(value) for name, value in settings.items()}
    return {**os.environ, "PYTHONPATH": str(ROOT), **named}


def until(happened: Callable[[], Any], what: str, within_s: float = PATIENCE_S) -> Any:
    """What it gives once that is true."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if result := happened():
            return result
        time.sleep(0.005)
    raise TimeoutError(f"waited {within_s:g} s for {what}")
