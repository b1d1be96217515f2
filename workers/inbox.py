"""Commands on their way from a worker's link to its executor: in order, but for a release, which overtakes, and for
units of jobs whose tensors are still coming, which those of other jobs overtake.
"""

import threading
from collections import deque
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from cards.wire import EngineMessage, Release, Shutdown, UnitId, WorkUnit


class Command(Struct, frozen=True):
    message: EngineMessage
    frames: Sequence[bytes] = ()
    dropped: tuple[UnitId, ...] = ()
    """For a release: the queued units that it took out."""


class Inbox:
    """A release takes the job's waiting units out, and is obeyed before whatever else waits."""

    def __init__(self) -> None:
        self._commands: deque[Command] = deque()
        self._coming: set[UnitId] = set()
        """The units whose tensors are on their way."""
        self._changed = threading.Condition()

    def put(self, command: Command, *, coming: bool = False) -> None:
        """A unit whose tensors are `coming` waits for `arrived`, and the later ones of its job wait with it."""
        with self._changed:
            if coming and isinstance(command.message, WorkUnit):
                self._coming.add(command.message.id)
            self._commands.append(command)
            self._changed.notify()

    def arrived(self, unit: UnitId, blobs: Mapping[str, bytes]) -> None:
        """What came for a unit, and nothing more will: it goes on as if it had been sent with these."""
        with self._changed:
            self._coming.discard(unit)
            self._commands = deque(_with(c, blobs) if _is(c, unit) else c for c in self._commands)
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
            while (command := self._next()) is None:
                self._changed.wait()
            return command

    def units(self) -> int:
        with self._changed:
            return sum(isinstance(command.message, WorkUnit) for command in self._commands)

    def get_nowait(self) -> Command | None:
        with self._changed:
            return self._next()

    def _next(self) -> Command | None:
        """The first that need not wait for tensors, its own or those of a unit of its job before it."""
        wait: set[str] = set()
        for index, command in enumerate(self._commands):
            unit = command.message
            if isinstance(unit, WorkUnit) and (unit.id in self._coming or unit.id.job in wait):
                wait.add(unit.id.job)
                continue
            del self._commands[index]
            return command
        return None


def _is(command: Command, unit: UnitId) -> bool:
    return isinstance(command.message, WorkUnit) and command.message.id == unit


def _with(command: Command, blobs: Mapping[str, bytes]) -> Command:
    unit = command.message
    assert isinstance(unit, WorkUnit)
    unit = replace(unit, inline=(*unit.inline, *blobs), fetch=None)
    return replace(command, message=unit, frames=(*command.frames, *blobs.values()))


def _belongs(command: Command, release: Release) -> bool:
    unit = command.message
    return isinstance(unit, WorkUnit) and unit.id.job == release.job and unit.id.epoch <= release.epoch
