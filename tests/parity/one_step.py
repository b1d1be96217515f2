"""Workers that run one step of each job: at the second one of a job they stand still until they are killed.

    python -m tests.parity.one_step DATA ADDRESS

forks an `engine worker` for each line on its standard input, which names the file that the worker tells its steps in.
Another line, and the end of the input, kills the worker before; an empty one starts no other. The process that is
forked has imported what a worker imports, for that takes longer than all the steps; it has run no step.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from cards import registry
from cards.wire import WorkUnit
from ops import cli
from ops.bench.processes import environment
from ops.models import read_models
from ops.settings import Settings
from workers import process
from workers.caches import Caches
from workers.execute import Answer, Executor
from workers.loaded import Loaded, load_models
from workers.resident import BlobStore

STILL = "still"


class OneStep(Executor):
    """What it may use is of its own process: it is told of no other."""

    def __init__(self, models: Mapping[str, Loaded], blobs: BlobStore, told: Path) -> None:
        super().__init__(models, blobs)
        self._told = told
        self._seen: set[str] = set()

    def execute(self, unit: WorkUnit, frames: list[bytes]) -> Answer:
        if unit.id.job in self._seen:
            self._tell(STILL)
            threading.Event().wait()
        self._seen.add(unit.id.job)
        answer = super().execute(unit, frames)
        self._tell(unit.id.job)
        return answer

    def _tell(self, line: str) -> None:
        with self._told.open("a") as file:
            file.write(f"{line}\n")


def main(data: str, address: str) -> None:
    load_models(registry.load([], read_models(Settings(data=Path(data)))))
    worker = 0
    for line in sys.stdin:
        kill(worker)
        name = line.strip()
        worker = fork(address, Path(name)) if name else 0
        sys.stdout.write(f"{worker}\n")
        sys.stdout.flush()
    kill(worker)


def kill(worker: int) -> None:
    if worker:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)


def fork(address: str, told: Path) -> int:
    if child := os.fork():
        return child

    def executor(
        models: Mapping[str, Loaded],
        blobs: BlobStore,
        extensions: Sequence[str] = (),
        *,
        stores: bool = True,
        device: str = "cpu",
        caches: Caches | None = None,
    ) -> Executor:
        return OneStep(models, blobs, told)

    process.executor = executor
    cli.main(["worker", "--connect", address])
    sys.exit(f"the worker of {told} ended by itself")


class OneStepWorkers:
    """As a test sees them: one after the other."""

    def __init__(self, folder: Path, forks: "subprocess.Popen[str]") -> None:
        self._folder = folder
        self._forks = forks
        self._pid = 0
        self.number = 0

    def start(self) -> None:
        self.number += 1
        self._pid = self._ask(str(self._file))

    def kill(self) -> None:
        self._ask("")

    def stands_still(self) -> bool:
        return STILL in self._told()

    def ran(self, job: str) -> int:
        return self._told().count(job)

    def is_of(self, worker: str) -> bool:
        """Whether this is the name that the engine knows it by."""
        return worker.split("-")[1] == str(self._pid)

    @property
    def _file(self) -> Path:
        return self._folder / f"one-step-{self.number}"

    def _told(self) -> list[str]:
        return self._file.read_text().splitlines() if self._file.exists() else []

    def _ask(self, line: str) -> int:
        assert self._forks.stdin is not None
        assert self._forks.stdout is not None
        self._forks.stdin.write(f"{line}\n")
        self._forks.stdin.flush()
        return int(self._forks.stdout.readline())


@contextmanager
def one_step_workers(data: Path, address: str, **settings: object) -> Iterator[OneStepWorkers]:
    command = [sys.executable, "-m", "tests.parity.one_step", str(data), address]
    own = environment({"data": data, "device": "cpu", "threads": 1} | settings)
    with subprocess.Popen(command, env=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as forks:
        yield OneStepWorkers(data, forks)


if __name__ == "__main__":
    main(*sys.argv[1:])
