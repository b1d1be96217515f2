"""The cells: what goes wrong where, and what must come of it."""

import signal
import time
from collections.abc import Callable
from functools import partial

import psutil
from msgspec import Struct

from tests.faults.place import ONE, RANKS, SILENT_S, WIRED, Place, Setup

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


def in_step(target: str, fault: str, setup: Setup, planted: str, *, times: int = 1, fails: str | None = None) -> Cell:
    """What the step's own process does wrong is its job's failure."""
    befall = partial(plant, *planted.split("."), times)
    return Cell(target=target, fault=fault, setup=setup, befall=befall, in_step=True, fails=fails)


def in_one_rank(fault: str, planted: str, *, times: int = 1) -> Cell:
    """What one rank does and the other does not is no job's failure: it ends the pool."""
    befall = partial(plant, planted, "1", times)
    return Cell(target="rank 1", fault=fault, setup=RANKS, befall=befall, in_step=True, goes_down=True, loses=True)


def on_the_way(target: str, *, to_engine: bool) -> Cell:
    """The worker is lost and back at once, perhaps too soon to be seen."""
    befall = partial(damage, to_engine)
    return Cell(
        target=target, fault="wrong bytes", setup=WIRED, befall=befall, in_step=True, goes_down=None, loses=True
    )


KILL, STOP = signal.SIGKILL, signal.SIGSTOP
TRIES = 2
"""Of a step that runs out of memory."""

CELLS = (
    to_process("worker", "SIGKILL", ONE, partial(strike, Place.worker, KILL)),
    to_process("worker", "SIGSTOP", ONE, partial(strike, Place.worker, STOP)),
    in_step("worker", "exception", ONE, "exception.0", fails="error"),
    in_step("worker", "NaN", ONE, "nan.0", fails="nan"),
    in_step("worker", "no memory", ONE, "no-memory.0", times=TRIES, fails="oom"),
    in_step("worker", "no memory, once", ONE, "no-memory.0"),
    on_the_way("worker", to_engine=False),
    to_process("rank 1", "SIGKILL", RANKS, partial(strike, Place.rank, KILL)),
    to_process("rank 1", "SIGSTOP", RANKS, partial(strike, Place.rank, STOP)),
    in_one_rank("exception", "exception"),
    in_one_rank("NaN", "nan"),
    in_one_rank("no memory", "no-memory", times=TRIES),
    in_step("rank 1", "no memory, once", RANKS, "no-memory.1"),
    in_one_rank("wrong bytes", "flip"),
    to_process("engine", "SIGKILL", ONE, kill_engine),
    to_process("engine", "SIGSTOP", ONE, freeze_engine),
    in_step("engine", "exception", ONE, "exception.engine", fails="error"),
    in_step("engine", "no memory", ONE, "no-memory.engine", fails="error"),
    on_the_way("engine", to_engine=True),
)

MEANS = {
    ("worker", "wrong bytes"): "in the next two messages to it, one in its last frame and one in its first",
    ("rank 1", "wrong bytes"): "ranks have no wire that could damage them: one makes a bit that the other does not",
    ("rank 1", "exception, NaN, no memory"): "which rank 0 does not have",
    ("engine", "exception, no memory"): "in a loop's code, which is what an engine runs of others",
    ("engine", "NaN"): "no such cell: an engine computes with no tensors",
    ("engine", "wrong bytes"): "in the next two messages to it",
}
"""What a fault is there, where its name does not say."""
