"""Keeps worker processes alive: one a slot, started again when it ends, slower each time that it does not join."""

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

import anyio

from engine.clock import Clock

log = logging.getLogger("keyframe.supervisor")

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0


class Process(Protocol):
    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    async def wait(self) -> int: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class Supervisor:
    """`ended` is told which process ended and how, and says whether it had come so far as to join."""

    def __init__(
        self,
        spawn: Callable[[int], Awaitable[Process]],
        slots: int,
        clock: Clock,
        ended: Callable[[int, str], Awaitable[bool]],
        *,
        grace_s: float = 5.0,
    ) -> None:
        self._spawn = spawn
        self._slots = slots
        self._clock = clock
        self._ended = ended
        self._grace_s = grace_s
        self._processes: dict[int, Process] = {}

    async def run(self) -> None:
        """Until cancelled; then every process is ended before this returns."""
        try:
            async with anyio.create_task_group() as tasks:
                for slot in range(self._slots):
                    tasks.start_soon(self._keep, slot)
        finally:
            with anyio.CancelScope(shield=True):  # a worker left behind would hold its device
                await self._end_all()

    def kill(self, pid: int) -> None:
        """End a process at once, if it is one of ours: it is given up, and will be started again."""
        if (process := self._processes.get(pid)) is not None and process.returncode is None:
            process.kill()

    async def _keep(self, slot: int) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            process = await self._spawn(slot)
            self._processes[process.pid] = process
            code = await process.wait()
            del self._processes[process.pid]
            how = f"was killed by signal {-code}" if code < 0 else f"exited with {code}"
            log.warning("worker process %d %s", process.pid, how)
            joined = await self._ended(process.pid, how)
            pause_s = FIRST_PAUSE_S if joined else min(2 * pause_s, LONGEST_PAUSE_S)
            await self._clock.sleep(pause_s)

    async def _end_all(self) -> None:
        for process in self._processes.values():
            if process.returncode is None:
                process.terminate()
        with anyio.move_on_after(self._grace_s):
            for process in self._processes.values():
                await process.wait()
        for process in self._processes.values():
            if process.returncode is None:
                process.kill()
                await process.wait()
