"""What is charged to a share when a step is placed becomes what the step took, whatever happens to it."""

import anyio
import anyio.lowlevel
import pytest

from cards.wire import StepError
from tests.engine.test_reservations import Cycles
from tests.sim import SimClock

STEP_S = 0.001
"""What a step takes on these devices; much more is charged for it."""


class Charged(Cycles):
    """Keeps account by itself, in a world where no time passes."""

    def __init__(self, seed: int) -> None:
        self.clock = SimClock()
        super().__init__(seed, self.clock)
        self.had_s = 0.0

    @property
    def with_workers_s(self) -> float:
        return sum(one.charged_s for seat in self.engine.fleet.seats.values() for one in seat.outstanding.values())

    async def _answer(self, error: StepError | None) -> None:
        self.had_s += STEP_S * any(device.units for device in self.devices.there.values())
        await super()._answer(error)

    async def lose(self) -> None:
        seats = self.engine.fleet.seats.copy()
        taken_s = {name: sum(seat.outstanding[unit].charged_s for unit in seat.running) for name, seat in seats.items()}
        await super().lose()
        [gone] = taken_s.keys() - self.engine.fleet.seats.keys()
        self.had_s += taken_s[gone]

    def check(self) -> None:
        super().check()
        charged_s = self.engine.dispatcher.scheduler.shares.of("", self.clock.monotonic())
        assert charged_s == pytest.approx(self.had_s + self.with_workers_s)


async def test_charges_come_to_what_was_had_and_what_is_with_workers() -> None:
    """What a worker died of was had, too."""
    charged, most_s = Charged(seed=3), 0.0
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(charged.engine.ledger.tell)
        await charged.join()
        await charged.join()
        for _ in range(2000):
            await charged.turn()
            most_s = max(most_s, charged.with_workers_s)
        while charged.engine.ledger.actors:
            await charged.end_a_step()
            await charged.let_go()
            await charged.engine.reconcile()
            await anyio.lowlevel.checkpoint()
            charged.check()
        tasks.cancel_scope.cancel()

    assert most_s > 10 * STEP_S, "nothing was charged"
    assert charged.with_workers_s == 0
