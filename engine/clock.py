"""Time as an argument. The only file of the engine that may read a clock."""

import time
from typing import Protocol

import anyio


class Clock(Protocol):
    """`now` is wall time in seconds since 1970, for people; `monotonic` is for deadlines."""

    def now(self) -> float: ...
    def monotonic(self) -> float: ...
    async def sleep(self, seconds: float) -> None: ...


class WallClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)
