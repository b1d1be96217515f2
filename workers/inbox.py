"""Commands on their way from a worker's link to its executor: in order, but for a release, which overtakes."""

import threading
from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from cards.wire import EngineMessage, Release, Shutdown, UnitId, WorkPlan, WorkUnit


class Command(Struct, frozen=True):
    message: EngineMessage
    frames: Sequence[bytes] = ()
    dropped: tuple[UnitId, ...] = ()
    """For a release: the queued units that it took out."""


class Inbox:
    """A release takes the job's waiting units out, and is obeyed before whatever else waits."""

    def __init__(self) -> None:
        self._commands: deque[Command] = deque()
        self._changed = threading.Condition()

    def put(self, command: Command) -> None:
        with self._changed:
            self._commands.append(command)
            self._changed.notify()

    def release(self, release: Release) -> None:
        with self._changed:
            stale = [c.message.id for c in self._commands if isinstance(c.message, WorkUnit) and _belongs(c, release)]
            self._commands = deque(c for c in self._commands if not _belongs(c, release))
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
            return sum(isinstance(command.message, WorkUnit) for command in self._commands)

    def plans(self) -> list[WorkPlan]:
        """Of the units that wait."""
        with self._changed:
            return [command.message.plan for command in self._commands if isinstance(command.message, WorkUnit)]

    def get_nowait(self) -> Command | None:
        with self._changed:
            return self._commands.popleft() if self._commands else None


def _belongs(command: Command, release: Release) -> bool:
    unit = command.message
    return isinstance(unit, WorkUnit) and unit.id.job == release.job and unit.id.epoch <= release.epoch
