"""Engines and workers as processes, with the toy family unless a test says otherwise."""

from contextlib import AbstractContextManager
from pathlib import Path
from subprocess import CompletedProcess, Popen
from typing import Any

import psutil

from ops.bench import processes
from ops.bench.processes import SHAPES as SHAPES
from ops.bench.processes import EngineProcess as EngineProcess
from ops.bench.processes import until as until

TOY = "tests.toy"


def engine(data: Path, **settings: Any) -> AbstractContextManager[EngineProcess]:
    return processes.engine(data, **{"families": TOY, "device": "cpu"} | settings)


def worker(data: Path, address: str, **settings: Any) -> "AbstractContextManager[Popen[bytes]]":
    return processes.worker(data, address, **{"families": TOY, "device": "cpu"} | settings)


def run(program: str, *arguments: object, **settings: object) -> "CompletedProcess[str]":
    return processes.run(program, *arguments, **{"families": TOY} | settings)


def workers_of(running: EngineProcess) -> list[int]:
    """Process ids of its workers, rank 0 of each pool."""
    return [child.pid for child in psutil.Process(running.process.pid).children()]


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
