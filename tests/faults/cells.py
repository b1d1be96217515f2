"""The cells: what goes wrong where, and what must come of it."""

import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import psutil
from msgspec import Struct

from tests.faults.place import ONE, RANKS, SHARED, SILENT_S, WIRED, Place, Setup
from workers.link import DAMAGED

Befall = Callable[[Place], Callable[[], None]]
"""Makes it happen. What it gives undoes it, once it has been noticed."""


class Cell(Struct, frozen=True, kw_only=True):
    """`fails` is the class of the one job that fails; without, all complete.

    `goes_down`: whether readiness must say so. None where the time may be too short to be seen.
    """

    target: str
    fault: str
    setup: Setup
    befall: Befall
    in_step: bool = False
    """Whether a job must come to it. Else it befalls processes that have nothing to do, or are in the middle of it."""
    fails: str | None = None
    goes_down: bool | None = False
    loses: bool = False
    """Whether a worker is lost."""
    says: str = ""
    """What is to be found, as an expression, in why a worker was lost, or in the error of the job that fails."""

    def called(self, load: str) -> str:
        return f"{load} {self.target} {self.fault} {self.setup.name}"

    @property
    def keeps_processes(self) -> bool:
        """Whether the same ones are there afterwards."""
        return self.goes_down is False or self.befall is freeze_engine


def nothing() -> None:
    pass


def strike(target: Callable[[Place], psutil.Process], which: signal.Signals, place: Place) -> Callable[[], None]:
    process = target(place)
    process.send_signal(which)
    return partial(thaw, process) if which is signal.SIGSTOP else nothing


def thaw(process: psutil.Process) -> None:
    if process.is_running():
        process.send_signal(signal.SIGCONT)


def freeze_engine(place: Place) -> Callable[[], None]:
    """For longer than workers may be silent: once it thaws it must not take that for theirs."""
    process = place.engine_process()
    process.send_signal(signal.SIGSTOP)

    def undo() -> None:
        time.sleep(1.5 * SILENT_S)
        thaw(process)

    return undo


def kill_engine(place: Place) -> Callable[[], None]:
    place.engine_process().kill()
    return place.start_again


def plant(fault: str, where: str, times: int, place: Place) -> Callable[[], None]:
    place.plant(fault, where, times)
    return nothing


def damage(to_engine: bool, place: Place) -> Callable[[], None]:
    assert place.wire is not None
    place.wire.damage(2, to_engine=to_engine)
    return nothing


def to_process(target: str, fault: str, setup: Setup, befall: Befall) -> Cell:
    return Cell(target=target, fault=fault, setup=setup, befall=befall, goes_down=True)


def in_step(target: str, fault: str, setup: Setup, planted: str, *, times: int = 1, **seen: Any) -> Cell:
    """What the step's own process does wrong is its job's failure."""
    befall = partial(plant, *planted.split("."), times)
    return Cell(target=target, fault=fault, setup=setup, befall=befall, in_step=True, **seen)


def in_one_rank(fault: str, planted: str, says: str, *, setup: Setup = RANKS, times: int = 1) -> Cell:
    """What one rank does and the other does not is no job's failure: it ends the pool."""
    return in_step("rank 1", fault, setup, f"{planted}.1", times=times, goes_down=True, loses=True, says=says)


def on_the_way(target: str, says: str, *, to_engine: bool) -> Cell:
    """The worker is lost and back at once, perhaps too soon to be seen."""
    befall = partial(damage, to_engine)
    return Cell(
        target=target,
        fault="wrong bytes",
        setup=WIRED,
        befall=befall,
        in_step=True,
        goes_down=None,
        loses=True,
        says=says,
    )


KILL, STOP = signal.SIGKILL, signal.SIGSTOP
TRIES = 2
"""Of a step that runs out of memory."""

ASKED, TOO_MUCH = "asked to fail", "can't allocate memory"
"""In the words of faulty_shapes, and of torch."""

CELLS = (
    to_process("worker", "SIGKILL", ONE, partial(strike, Place.worker, KILL)),
    to_process("worker", "SIGSTOP", ONE, partial(strike, Place.worker, STOP)),
    in_step("worker", "exception", ONE, "exception.0", fails="error", says=ASKED),
    in_step("worker", "NaN", ONE, "nan.0", fails="nan", says="[1-9][0-9]* NaN"),
    in_step("worker", "no memory", ONE, "no-memory.0", times=TRIES, fails="oom", says=TOO_MUCH),
    in_step("worker", "no memory, once", ONE, "no-memory.0"),
    on_the_way("worker", DAMAGED, to_engine=False),
    to_process("rank 1", "SIGKILL", RANKS, partial(strike, Place.rank, KILL)),
    to_process("rank 1", "SIGSTOP", RANKS, partial(strike, Place.rank, STOP)),
    in_one_rank("exception", "exception", f"rank 1 failed with .*{ASKED}"),
    in_one_rank("NaN", "nan", "rank 1 (made|failed with .* NaN)"),
    in_one_rank("no memory", "no-memory", f"rank 1 failed with .*{TOO_MUCH}", times=TRIES),
    in_step("rank 1", "no memory, once", RANKS, "no-memory.1"),
    in_one_rank("wrong bytes", "flip", "rank 1 made .* where rank 0 made"),
    to_process("rank 0", "SIGKILL", SHARED, partial(strike, Place.worker, KILL)),
    to_process("rank 1", "SIGKILL", SHARED, partial(strike, Place.rank, KILL)),
    in_one_rank("no memory", "no-memory", f"rank 1 .*{TOO_MUCH}", setup=SHARED),
    in_step("rank 1", "no memory, shared", SHARED, "shared.1", fails="oom", says=f"{TOO_MUCH}.* \\(rank 1\\)"),
    to_process("engine", "SIGKILL", ONE, kill_engine),
    to_process("engine", "SIGSTOP", ONE, freeze_engine),
    in_step("engine", "exception", ONE, "exception.engine", fails="error", says=ASKED),
    in_step("engine", "no memory", ONE, "no-memory.engine", fails="error", says="MemoryError"),
    on_the_way("engine", "do not hash to their name|messages were lost", to_engine=True),
)

MEANS = {
    ("worker", "wrong bytes"): "in the next two messages to it, one in its last frame and one in its first",
    ("rank 1", "wrong bytes"): "ranks have no wire that could damage them: one makes a bit that the other does not",
    ("rank 1", "exception, NaN, no memory"): "which rank 0 does not have",
    ("rank 1", "no memory, shared"): "in its share of a forward, which rank 0 waits for",
    ("engine", "exception, no memory"): "in a loop's code, which is what an engine runs of others",
    ("engine", "NaN"): "no such cell: an engine computes with no tensors",
    ("engine", "wrong bytes"): "in the next two messages to it",
}
"""What a fault is there, where its name does not say."""
