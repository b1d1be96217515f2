"""Commands on their way from a worker's link to its executor: in order, but for a release, which overtakes."""

import threading
from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from cards.wire import Batch, EngineMessage, Release, Shutdown, UnitId, WorkPlan, WorkUnit, members


class Command(Struct, frozen=True):
    message: EngineMessage
    frames: Sequence[bytes] = ()
    dropped: tuple[UnitId, ...] = ()
    """For a release: the queued units that it took out."""

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
        self._changed = threading.Condition()

    def put(self, command: Command) -> None:
        with self._changed:
            self._commands.append(command)
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
            self._changed.wait_for(lambda: self._commands)
            return self._commands.popleft()

    def units(self) -> int:
        with self._changed:
            return sum(len(command.units) for command in self._commands)

    def plans(self) -> list[WorkPlan]:
        """Of the units that wait."""
        with self._changed:
            return [unit.plan for command in self._commands for unit in command.units]

    def get_nowait(self) -> Command | None:
        with self._changed:
            return self._commands.popleft() if self._commands else None


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
    return Command(Batch(tuple(unit for unit, _ in left)), tuple(frame for _, frames in left for frame in frames))
