"""Worker processes that end, and the pauses before they are started again: with processes and a clock of our own."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from engine.supervisor import FIRST_PAUSE_S, LONGEST_PAUSE_S, Supervisor
from tests.sim import SimClock


class FakeProcess:
    """`stubborn`, it does not end when it is told to."""

    def __init__(self, pid: int, *, stubborn: bool = False) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.told: list[str] = []
        self._stubborn = stubborn
        self._ended = asyncio.Event()

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        self.told.append("terminate")
        if not self._stubborn:
            self.end(-15)

    def kill(self) -> None:
        self.told.append("kill")
        self.end(-9)

    def end(self, code: int) -> None:
        self.returncode = code
        self._ended.set()


class PausesClock(SimClock):
    """Time that goes on at once to where somebody waits for, and the pauses that were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.time += seconds
        await anyio.lowlevel.checkpoint()


class Slots:
    """What the supervisor is given, and what it made of it."""

    def __init__(self, slots: int = 1, *, stubborn: bool = False, grace_s: float = 5.0) -> None:
        self.started: list[FakeProcess] = []
        self.slots: list[int] = []
        self.ended: list[tuple[int, str]] = []
        self.joins = False
        self.clock = PausesClock()
        self.supervisor = Supervisor(self._spawn, slots, self.clock, self._tell, grace_s=grace_s)
        self._stubborn = stubborn

    async def _spawn(self, slot: int) -> FakeProcess:
        self.slots.append(slot)
        self.started.append(FakeProcess(100 + len(self.started), stubborn=self._stubborn))
        return self.started[-1]

    async def _tell(self, pid: int, how: str) -> bool:
        self.ended.append((pid, how))
        return self.joins

    async def until_started(self, count: int) -> FakeProcess:
        with anyio.fail_after(30):
            while len(self.started) < count:
                await anyio.lowlevel.checkpoint()
        return self.started[count - 1]


@asynccontextmanager
async def supervised(slots: Slots) -> AsyncIterator[Slots]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(slots.supervisor.run)
        yield slots
        tasks.cancel_scope.cancel()


async def test_every_slot_has_a_process() -> None:
    async with supervised(Slots(3)) as slots:
        await slots.until_started(3)

    assert sorted(slots.slots) == [0, 1, 2]


async def test_a_process_that_ends_is_told_and_started_again_in_its_slot() -> None:
    async with supervised(Slots(2)) as slots:
        second = await slots.until_started(2)
        second.end(3)
        (await slots.until_started(3)).end(-9)
        await slots.until_started(4)

    assert slots.slots == [0, 1, 1, 1]
    assert slots.ended == [(second.pid, "exited with 3"), (102, "was killed by signal 9")]


async def test_the_pause_grows_for_one_that_never_joins_up_to_a_limit() -> None:
    async with supervised(Slots()) as slots:
        for count in range(1, 12):
            (await slots.until_started(count)).end(1)
        await slots.until_started(12)

    pauses = slots.clock.pauses
    assert all(after == min(2 * before, LONGEST_PAUSE_S) for before, after in itertools.pairwise(pauses))
    assert FIRST_PAUSE_S <= pauses[0] < 1
    assert pauses[-1] == LONGEST_PAUSE_S


async def test_the_pause_is_short_again_after_one_that_joined() -> None:
    async with supervised(Slots()) as slots:
        for count in range(1, 6):
            (await slots.until_started(count)).end(1)
        grown = await slots.until_started(6)
        slots.joins = True
        grown.end(1)
        await slots.until_started(7)

    assert slots.clock.pauses[-1] == FIRST_PAUSE_S < slots.clock.pauses[-2]


async def test_one_slot_does_not_wait_for_the_pause_of_another() -> None:
    async with supervised(Slots(2)) as slots:
        await slots.until_started(2)
        for count in (3, 4, 5):
            slots.started[-1].end(1)
            await slots.until_started(count)
        slots.started[0].end(1)
        await slots.until_started(6)

    assert slots.slots[-1] == 0
    assert slots.clock.pauses[-1] == slots.clock.pauses[0]


async def test_only_processes_of_its_own_are_killed() -> None:
    async with supervised(Slots()) as slots:
        process = await slots.until_started(1)
        slots.supervisor.kill(1)
        assert process.told == []
        slots.supervisor.kill(process.pid)
        slots.supervisor.kill(process.pid)
        await slots.until_started(2)
        slots.supervisor.kill(process.pid)

    assert process.told == ["kill"]
    assert slots.ended == [(process.pid, "was killed by signal 9")]


@pytest.mark.parametrize(("stubborn", "told"), [(False, ["terminate"]), (True, ["terminate", "kill"])])
async def test_nothing_is_left_behind(stubborn: bool, told: list[str]) -> None:
    async with supervised(Slots(3, stubborn=stubborn, grace_s=0.05)) as slots:
        await slots.until_started(3)

    assert [process.told for process in slots.started] == [told] * 3
    assert all(process.returncode is not None for process in slots.started)


async def test_one_that_has_ended_already_is_not_told_to() -> None:
    async with supervised(Slots(2)) as slots:
        gone = await slots.until_started(2)
        gone.end(0)

    assert gone.told == []
    assert slots.started[0].told == ["terminate"]
