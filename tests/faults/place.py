"""Where cells are played: one engine, which is started again when it was killed, its worker, and who looks on."""

import contextlib
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from msgspec import Struct

from ops.bench.processes import command, environment
from tests.chaos.hosts import free_port
from tests.faults.damage import DamagingWire, damaging_wire
from tests.faults.holds import Holds, seen
from tests.processes import EngineProcess, engine, gone, until

FAMILY = "tests.faults.faulty_shapes"
SILENT_S = 2.0
LOOK_S = 0.02
ASK_S = 0.05
"""Between two looks at what takes longer, so as not to keep a busy machine busy."""

ANSWER_S = 3.0
"""Who does not answer for this long is not ready."""

ORDER: dict[str, Any] = {"model": "shapes", "steps": 4, "preview_every": 2}
PROMPT = "a red circle moving right on a black background"


class Setup(Struct, frozen=True):
    """How many ranks its worker has, by which plan they share steps, and whether it is at the end of a wire which can
    damage what it carries.
    """

    name: str
    ranks: int = 1
    parallel: str = ""
    wired: bool = False


ONE = Setup("one")
RANKS = Setup("ranks", ranks=2)
SHARED = Setup("shared", ranks=2, parallel="cfg")
WIRED = Setup("wired", wired=True)


class Watch:
    """Asks for readiness all the time. What it saw is a list of changes: when, and the reasons, or that all is well."""

    READY = "ready"

    def __init__(self, url: str) -> None:
        self.seen: list[tuple[float, str]] = []
        self._url = url
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def now(self) -> str:
        return self.seen[-1][1] if self.seen else ""

    def down_after(self, at: float) -> str | None:
        """Why it was first seen not to be ready after that."""
        return next((what for when, what in self.seen if when >= at and what != self.READY), None)

    def when(self, at: float, *, ready: bool) -> float | None:
        return next((when - at for when, what in self.seen if when >= at and (what == self.READY) == ready), None)

    def _look(self) -> None:
        with httpx.Client(timeout=ANSWER_S, trust_env=False) as http:
            while not self._over.wait(LOOK_S):
                what = self._ask(http)
                if what != self.now:
                    self.seen.append((time.monotonic(), what))

    def _ask(self, http: httpx.Client) -> str:
        try:
            answer = http.get(f"{self._url}/readyz")
        except httpx.HTTPError:
            return "no answer"
        return self.READY if answer.is_success else "; ".join(answer.json()["reasons"])


class Place:
    """`temporary` is where its processes have their temporary files, and nobody else."""

    def __init__(
        self, setup: Setup, folder: Path, temporary: Path, wire: DamagingWire | None, workers_port: int
    ) -> None:
        self.setup = setup
        self.folder = folder
        self.temporary = temporary
        self.faults = folder / "faults"
        self.faults.mkdir(parents=True)
        self.wire = wire
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._workers_port = workers_port
        self._stack = contextlib.ExitStack()
        self._over = threading.Event()
        self._elsewhere: subprocess.Popen[bytes] | None = None
        self.running = self._start()

    def _start(self) -> EngineProcess:
        settings: dict[str, Any] = {
            "families": FAMILY,
            "port": self.port,
            "silent_s": SILENT_S,
            "ranks": self.setup.ranks,
            "rank_timeout_s": 5,
        }
        if self.setup.parallel:
            settings["parallel"] = self.setup.parallel
        if self.wire is not None:
            settings |= {"workers": 0, "listen_workers": f"tcp://127.0.0.1:{self._workers_port}"}
        return self._stack.enter_context(engine(self.folder / "data", ready=False, **settings))

    def start_again(self) -> None:
        self.running.process.wait()
        self.running = self._start()

    def ready(self) -> None:
        until(self._is_ready, "a worker to serve", 60)

    def _is_ready(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return self.running.http.get("/readyz", timeout=1).is_success
        return False

    def close(self) -> None:
        self._over.set()
        if self._elsewhere is not None and self._elsewhere.poll() is None:
            self._elsewhere.kill()
        self._stack.close()

    def keep_worker(self) -> None:
        """A worker at the end of the wire, started again whenever it has ended, as a machine's own supervisor would."""
        assert self.wire is not None
        arguments = command("worker", "--connect", f"tcp://127.0.0.1:{self.wire.port}")
        own = environment(
            {"families": FAMILY, "threads": 1, "silent_s": SILENT_S, "data": self.folder / "data", "device": "cpu"}
        )
        with (self.folder / "worker.log").open("ab") as log:
            while not self._over.wait(LOOK_S):
                self._elsewhere = subprocess.Popen(arguments, env=own, stdout=log, stderr=log)
                self._elsewhere.wait()

    # -- what can be struck -------------------------------------------------------------------------------------------

    def engine_process(self) -> psutil.Process:
        return psutil.Process(self.running.process.pid)

    def worker(self) -> psutil.Process:
        """Rank 0 of the engine's worker."""
        if self._elsewhere is not None:
            return psutil.Process(self._elsewhere.pid)
        return until(lambda: self.engine_process().children(), "a worker", 30)[0]  # type: ignore[no-any-return]

    def rank(self) -> psutil.Process:
        return until(lambda: self.worker().children(), "another rank", 30)[0]  # type: ignore[no-any-return]

    def plant(self, fault: str, where: str, times: int = 1) -> None:
        """It waits for whoever comes to it."""
        for number in range(times):
            (self.faults / f"{fault}.{where}.{number}").touch()

    def planted(self) -> list[str]:
        return [file.name for file in self.faults.iterdir()]

    def processes(self) -> set[int]:
        """All that belong to it."""
        found = {self.running.process.pid}
        with contextlib.suppress(psutil.NoSuchProcess):
            found |= {one.pid for one in self.engine_process().children(recursive=True)}
        if self._elsewhere is not None and self._elsewhere.poll() is None:
            found.add(self._elsewhere.pid)
        return found

    # -- what is left of it -------------------------------------------------------------------------------------------

    def submit(self, seed: int) -> str:
        return self.running.submit(PROMPT, **{**ORDER, "seed": seed})

    def made(self, job: str) -> Any:
        """All that a job's steps made, by digest."""
        steps = [event["data"] for event in self.running.events(job) if event["type"] == "step_completed"]
        return [(step["node"], step["step"], step["tensors"], step["artifacts"]) for step in steps]

    def statistics(self) -> dict[str, float]:
        shown = self.running.http.get("/metrics").text
        return {name: float(value) for name, value in re.findall(r"^keyframe_(\w+) (\S+)$", shown, re.MULTILINE)}

    def holds(self) -> Holds:
        worker = self.worker()
        ranks = {f"rank {rank}": process for rank, process in enumerate(worker.children(), start=1)}
        processes = {"engine": self.engine_process(), "worker": worker, **ranks}
        return seen(processes, self.temporary)

    def leaks(self, before: Holds) -> Iterator[str]:
        """What is still held though there is nothing to do, by the engine, by its processes and by nobody any more."""
        for name in ("outstanding_units", "reserved_bytes", "resident_tensors", "ready_steps", "active_jobs"):
            if problem := missed(lambda name=name: self.statistics()[name] == 0, 15):  # type: ignore[misc]
                yield f"{name} is {self.statistics()[name]:g} at rest ({problem})"
        if problem := missed(lambda: not any(self.holds().more_than(before)), 15):
            yield from (f"{more} ({problem})" for more in self.holds().more_than(before))

    def orphans(self, seen: set[int]) -> Iterator[str]:
        """Processes that were part of it, are no more, and live."""
        for pid in seen - self.processes():
            if problem := missed(lambda pid=pid: gone(pid) or pid in self.processes(), 10):  # type: ignore[misc]
                yield f"process {pid} has been left behind ({problem})"


def missed(happened: Callable[[], bool], within_s: float) -> str:
    """In words, if it does not happen in time."""
    deadline = time.monotonic() + within_s
    while not happened():
        if time.monotonic() > deadline:
            return f"waited {within_s:g} s"
        time.sleep(ASK_S)
    return ""


@contextlib.contextmanager
def opened(setup: Setup, folder: Path) -> Iterator[Place]:
    workers_port = free_port()
    with contextlib.ExitStack() as stack:
        temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="faults-"))  # a short name, as sockets need
        variables = stack.enter_context(pytest.MonkeyPatch.context())
        variables.setenv("FAULTS", str(folder / "faults"))
        variables.setenv("TMPDIR", temporary)
        wire = stack.enter_context(damaging_wire(workers_port)) if setup.wired else None
        place = Place(setup, folder, Path(temporary), wire, workers_port)
        stack.callback(place.close)
        if wire is not None:
            threading.Thread(target=place.keep_worker, daemon=True).start()
        place.ready()
        yield place
