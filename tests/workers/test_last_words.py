"""What a worker says before it ends, so that the right job is blamed for that, or none."""

from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from cards.errors import WeightsChanged
from cards.wire import Fetch, Goodbye, Heartbeat
from engine.link import listen
from tests.workers.test_transfers import holding
from tests.workers.test_worker_link import FRAMES, REFS, asked, hear, hear_but_beats, worker

DIGEST = REFS["x"].digest


async def test_what_begins_once_its_tensors_have_come_is_said_at_once() -> None:
    """Others have overtaken it, so that nobody could tell from the order of sending."""
    moved = replace(asked("moved"), inline=())
    with holding({DIGEST: torch.arange(4.0)}) as holder, holding({}) as transfers:
        async with listen() as engine, worker(engine.address, heartbeat_s=1e6, transfers=transfers) as there:
            await hear(engine, Heartbeat)
            await engine.send("w", replace(moved, fetch=Fetch(holder.address, (DIGEST,))))

            beat = (await hear(engine, Heartbeat)).message

            assert isinstance(beat, Heartbeat)
            assert beat.running == (moved.id,)
            assert not there.steps.gate.is_set(), "it runs"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_weights_that_have_changed_are_no_jobs_doing() -> None:
    changed = WeightsChanged(Path("vae"))
    async with listen() as engine, worker(engine.address) as there:
        await engine.receive()
        there.steps.error = changed
        there.steps.gate.set()
        await engine.send("w", asked("j"), FRAMES)
        [goodbye] = await hear_but_beats(engine, 1)
        await there.ended.wait()

    assert goodbye == Goodbye(f"WeightsChanged: {changed}", clean=True)
