"""What a scenario's operations pass: one tap writes them down, the other kills the process at one of them."""

import itertools
import os
import signal
from collections.abc import Callable
from typing import TypeVar

from tests.crash.operation import Moment, Operation

T = TypeVar("T")


class Recorder:
    """`asked` are all operations in order, also those that failed; `log` is what was done, and told of, in between."""

    def __init__(self) -> None:
        self.asked: list[Operation] = []
        self.log: list[Operation] = []

    def __call__(self, operation: Operation, act: Callable[[], T], half: Callable[[], object] | None = None) -> T:
        self.asked.append(operation)
        result = act()
        self.log.append(operation)
        return result

    def tell(self, line: str) -> None:
        self.log.append(Operation("told", line))


class Killer:
    """Kills this process, as `kill -9` does, at its n-th operation, counted from 0."""

    def __init__(self, nth: int, moment: Moment) -> None:
        self._numbers = itertools.count()
        self._nth = nth
        self._moment = moment

    def __call__(self, operation: Operation, act: Callable[[], T], half: Callable[[], object] | None = None) -> T:
        here = next(self._numbers) == self._nth
        if here and self._moment is Moment.BEFORE:
            die()
        if here and self._moment is Moment.HALFWAY and half is not None:
            half()
            die()
        try:
            return act()
        finally:  # also after one that failed
            if here:
                die()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
