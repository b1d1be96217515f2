"""Commands on their way from a worker's link to its executor: in order, but for a release, which overtakes, and for
units of jobs whose tensors are still coming, which those of other jobs overtake.
"""

import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from cards.wire import Batch, EngineMessage, Release, Shutdown, UnitId, WorkPlan, WorkUnit, members


class Command(Struct, frozen=True):
    message: EngineMessage
    frames: Sequence[bytes] = ()
    dropped: tuple[UnitId, ...] = ()
    """For a release: the queued units that it took out."""
    fetched: bool = False
    """Whether tensors came for it from another worker: nobody outside can tell when its turn is."""

    @property
    def units(self) -> tuple[WorkUnit, ...]:
        match self.message:
            case WorkUnit() as unit:
                return (unit,)
            case Batch(units=units):
                return units
            case _:
                return ()


class Inbox:
    """A release takes the job's waiting units out, also of batches, and is obeyed before whatever else waits."""

    def __init__(self) -> None:
        self._commands: deque[Command] = deque()
        self._coming: set[UnitId] = set()
        """The units whose tensors are on their way."""
        self._changed = threading.Condition()

    def put(self, command: Command, *, coming: Collection[UnitId] = ()) -> None:
        """Units whose tensors are `coming` wait for `arrived`, and the later ones of their jobs wait with them."""
        with self._changed:
            self._coming.update(coming)
            self._commands.append(command)
            self._changed.notify()

    def arrived(self, unit: UnitId, blobs: Mapping[str, bytes]) -> None:
        """What came for a unit, and nothing more will: it goes on as if it had been sent with these."""
        with self._changed:
            self._coming.discard(unit)
            self._commands = deque(_with(command, unit, blobs) for command in self._commands)
            self._changed.notify()

    def release(self, release: Release) -> None:
        with self._changed:
            stale = [unit.id for command in self._commands for unit in command.units if _belongs(unit, release)]
            left = (_without(command, release) for command in self._commands)
            self._commands = deque(command for command in left if command is not None)
            self._commands.appendleft(Command(release, dropped=tuple(stale)))
            self._changed.notify()

    def clear(self, last: Command) -> None:
        """Forget what waits: `last` is all there is to do. Nothing takes a shutdown back."""
        with self._changed:
            if not any(isinstance(command.message, Shutdown) for command in self._commands):
                self._commands = deque([last])
            self._changed.notify()

    def get(self) -> Command:
        with self._changed:
            while (command := self._next()) is None:
                self._changed.wait()
            return command

    def units(self) -> int:
        with self._changed:
            return sum(len(command.units) for command in self._commands)

    def plans(self) -> list[WorkPlan]:
        """Of the units that wait."""
        with self._changed:
            return [unit.plan for command in self._commands for unit in command.units]

    def get_nowait(self) -> Command | None:
        with self._changed:
            return self._next()

    def _next(self) -> Command | None:
        """The first that need not wait for tensors, its own or those of a unit of its job before it."""
        wait: set[str] = set()
        for index, command in enumerate(self._commands):
            units = command.units
            if any(unit.id in self._coming or unit.id.job in wait for unit in units):
                wait.update(unit.id.job for unit in units)
                continue
            del self._commands[index]
            return command
        return None


def _with(command: Command, unit: UnitId, blobs: Mapping[str, bytes]) -> Command:
    """The command with these among the frames of a unit, if it is one of its."""
    if all(one.id != unit for one in command.units):
        return command
    units, frames = [], []
    for one, its in _parted(command):
        mine = one.id == unit
        units.append(replace(one, inline=(*one.inline, *blobs), fetch=None) if mine else one)
        frames += [*its, *blobs.values()] if mine else its
    message = Batch(tuple(units)) if isinstance(command.message, Batch) else units[0]
    return replace(command, message=message, frames=tuple(frames), fetched=True)


def _parted(command: Command) -> list[tuple[WorkUnit, list[bytes]]]:
    """Its units, each with its own frames."""
    whole = command.message if isinstance(command.message, Batch) else Batch(command.units)
    return members(whole, command.frames)


def _belongs(unit: WorkUnit, release: Release) -> bool:
    return unit.id.job == release.job and unit.id.epoch <= release.epoch


def _without(command: Command, release: Release) -> Command | None:
    """What the release leaves of a command."""
    units = command.units
    if not any(_belongs(unit, release) for unit in units):
        return command
    if not isinstance(command.message, Batch):
        return None
    left = [one for one in members(command.message, command.frames) if not _belongs(one[0], release)]
    if not left:
        return None
    frames = tuple(frame for _, its in left for frame in its)
    return replace(command, message=Batch(tuple(unit for unit, _ in left)), frames=frames)
