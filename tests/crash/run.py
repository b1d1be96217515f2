"""One scenario, run again and again: each time on a fresh copy of what was prepared, to another point."""

import os
import shutil
import signal
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import anyio
import msgspec
from msgspec import Struct

from tests.crash.forked import forked, result_of
from tests.crash.operation import Moment, Operation, Tap
from tests.crash.power import Disk, nothing, some, write_out
from tests.crash.scenario import Place, Scenario, Tell
from tests.crash.taps import Killer, Recorder
from tests.crash.watch_psycopg import watch_psycopg
from tests.crash.watch_python import watch_python
from tests.crash.watch_sqlite import watch_sqlite
from tests.postgres import copy_of, drop, new_beside


class Recording(Struct, frozen=True):
    asked: list[Operation]
    log: list[Operation]


class Kill(Struct, frozen=True):
    nth: int
    moment: Moment
    operation: Operation

    def __str__(self) -> str:
        return f"killed {self.moment.value} operation {self.nth}, {self.operation}"


class Cut(Struct, frozen=True):
    """`done` operations and promises of the log came before it."""

    done: int
    seed: int

    def __str__(self) -> str:
        return f"power cut after entry {self.done} of the log, seed {self.seed}"


class Run(ABC):
    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self._scenario = scenario
        self._notes = folder / "notes"
        self._prepared = folder / "prepared"
        self._recorded = folder / "recorded"
        self._store = folder / "store"

    def record(self) -> Recording:
        """Run it to its end."""

        def live(place: Place) -> Recording:
            recorder = Recorder()
            self._live(place, recorder, recorder.tell)
            return Recording(recorder.asked, recorder.log)

        with self._copy(self._recorded) as place:
            return result_of(lambda: live(place), Recording)

    def kill(self, kill: Kill) -> list[str]:
        with self._copy(self._store) as place:
            ended = forked(lambda: self._live(place, Killer(kill.nth, kill.moment), self._note()))
            told = self._notes.read_text().splitlines()
            self._notes.unlink()
            if ended.code not in (0, -signal.SIGKILL):
                return [f"ended with {ended.code}"]
            if self._scenario.steady and ended.code == 0 and not self._outlives(kill):
                return ["did not come so far"]
            return self._check(place, told)

    def _prepare(self, url: str = "") -> None:
        self._prepared.mkdir()
        result_of(lambda: anyio.run(self._scenario.prepare, Place(self._prepared, url)), type(None))

    @contextmanager
    def _copied_folder(self, target: Path) -> Iterator[None]:
        with _removed(target):
            shutil.copytree(self._prepared, target)
            yield

    def _note(self) -> Tell:
        fd = os.open(self._notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        write = os.write  # the one that nobody watches
        return lambda line: write(fd, f"{line}\n".encode())

    def _live(self, place: Place, tap: Tap, tell: Tell) -> None:
        self._watch(place, tap)
        anyio.run(self._scenario.live, place, tell)

    def _check(self, place: Place, told: Sequence[str]) -> list[str]:
        ended = forked(lambda: anyio.run(self._scenario.check, place, told))
        if ended.result is None:
            return [f"cannot be recovered: the check ended with {ended.code}"]
        return msgspec.json.decode(ended.result, type=list[str])

    @abstractmethod
    def _copy(self, target: Path) -> AbstractContextManager[Place]:
        """Another place like the one that was prepared."""

    @abstractmethod
    def _watch(self, place: Place, tap: Tap) -> None:
        """Have the tap see what is done there."""

    def _outlives(self, kill: Kill) -> bool:
        return False


class FileRun(Run):
    @classmethod
    @contextmanager
    def of(cls, scenario: Scenario) -> Iterator["FileRun"]:
        with _folder() as folder:
            run = cls(scenario, folder)
            run._prepare()
            yield run

    def cut(self, log: Sequence[Operation], cut: Cut) -> list[str]:
        """Recover what the disk may hold if the power goes at this point of what was recorded."""
        disk = Disk(self._prepared, self._recorded)
        for operation in log[: cut.done]:
            disk.do(operation)
        with _removed(self._store):
            self._store.mkdir()
            write_out(disk, some(cut.seed) if cut.seed else nothing, self._recorded, self._store)
            told = [operation.path for operation in log[: cut.done] if operation.kind == "told"]
            return self._check(Place(self._store), told)

    @contextmanager
    def _copy(self, target: Path) -> Iterator[Place]:
        with self._copied_folder(target):
            yield Place(target)

    def _watch(self, place: Place, tap: Tap) -> None:
        watch_sqlite(tap, place.folder)
        watch_python(tap, place.folder)


class PostgresRun(Run):
    """Each time in a database of its own, a copy of the one that was prepared."""

    def __init__(self, scenario: Scenario, folder: Path, prepared: str) -> None:
        super().__init__(scenario, folder)
        self._template = prepared

    @classmethod
    @contextmanager
    def of(cls, scenario: Scenario, server: str) -> Iterator["PostgresRun"]:
        """`server` is the URL of any of its databases."""
        template = new_beside(server)
        try:
            with _folder() as folder:
                run = cls(scenario, folder, template)
                run._prepare(template)
                yield run
        finally:
            drop(template)

    @contextmanager
    def _copy(self, target: Path) -> Iterator[Place]:
        url = copy_of(self._template)
        try:
            with self._copied_folder(target):
                yield Place(target, url)
        finally:
            drop(url)

    def _watch(self, place: Place, tap: Tap) -> None:
        watch_psycopg(tap, place.url)

    def _outlives(self, kill: Kill) -> bool:
        return kill.moment is Moment.HALFWAY  # it loses its connection, and is told that the store is not there


@contextmanager
def _removed(folder: Path) -> Iterator[None]:
    try:
        yield
    finally:
        shutil.rmtree(folder)


@contextmanager
def _folder() -> Iterator[Path]:
    """In memory where that can be: a kill takes nothing from a file system, so none needs to sync."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder).resolve()
