"""An event loop on virtual time: when nothing is ready, time jumps to the next timer; what is ready runs in an order
that is drawn from a seed.

asyncio promises first in, first out for callbacks. What a process gets from its disk and its sockets comes in any
order, so nothing under test may rely on it: callbacks that are ready together are shuffled, and some are put off for a
round.
"""

import asyncio
import heapq
import itertools
import math
from collections.abc import Callable
from random import Random
from typing import Any, NoReturn


class Stuck(Exception):
    """Nothing is ready and no timer runs: everyone waits for something that nobody will do."""


class Endless(Exception):
    """So many callbacks ran that something must be spinning."""


class SimTask(asyncio.Task):  # type: ignore[type-arg]
    """A task with a number of its own. Sets of tasks are walked in the order of addresses; `serial` undoes that."""

    serial = 0


class SimLoop(asyncio.BaseEventLoop):
    """`put_off` is the chance that a ready callback waits for the next round. `turns` counts the callbacks that ran."""

    def __init__(self, chance: Random, *, put_off: float = 0.1, most_turns: int = 3_000_000) -> None:
        super().__init__()
        self.turns = 0
        self._now = 0.0
        self._chance = chance
        self._put_off = put_off
        self._most_turns = most_turns
        self._alarms: list[tuple[int, int, Callable[[], None]]] = []
        self._count = itertools.count(1)
        self.set_task_factory(self._task)

    def time(self) -> float:
        return self._now

    def after_turns(self, turns: int, act: Callable[[], None]) -> None:
        """Call this between two callbacks: in the middle of whatever goes on, at any await."""
        heapq.heappush(self._alarms, (self.turns + turns, next(self._count), act))

    def run_in_executor(self, *_: Any) -> NoReturn:
        raise AssertionError("a thread: what it does and when is not decided by the seed")

    def call_soon_threadsafe(self, *_: Any, **__: Any) -> NoReturn:
        raise AssertionError("a thread calls: what it does and when is not decided by the seed")

    def _task(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> SimTask:
        task = SimTask(coro, loop=loop, **options)
        task.serial = next(self._count)
        return task

    def _run_once(self) -> None:
        self._ready.extend(self._due())
        batch = sorted(self._ready, key=_serial) if len(self._ready) > 1 else list(self._ready)
        self._ready.clear()
        self._chance.shuffle(batch)
        for handle in batch:
            if len(batch) > 1 and self._chance.random() < self._put_off:
                self._ready.append(handle)
            elif not handle._cancelled:
                self._ring()
                handle._run()

    def _due(self) -> list[asyncio.Handle]:
        """The timers that have run out, once time has moved on to the next one if there is nothing else to do."""
        due: list[asyncio.Handle] = []
        while (timers := self._scheduled) and (timers[0]._cancelled or timers[0]._when <= self._until(due)):
            timer = heapq.heappop(timers)
            timer._scheduled = False
            if not timer._cancelled:
                self._now = max(self._now, timer._when)
                due.append(timer)
        if not due and not self._ready and not self._stopping:
            raise Stuck("nothing is ready and no timer runs")
        return due

    def _until(self, due: list[asyncio.Handle]) -> float:
        idle = not due and not self._ready and not self._stopping
        return math.inf if idle else self._now

    def _ring(self) -> None:
        self.turns += 1
        if self.turns > self._most_turns:
            raise Endless(f"{self.turns} callbacks at {self._now:.3f} s")
        while self._alarms and self._alarms[0][0] <= self.turns:
            heapq.heappop(self._alarms)[2]()

    def _process_events(self, event_list: Any) -> None:
        pass


def _serial(handle: asyncio.Handle) -> float:
    """In which order callbacks of one round are shuffled: that of their tasks, the others as they came."""
    return getattr(getattr(handle._callback, "__self__", None), "serial", math.inf)
