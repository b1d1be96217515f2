"""Bytes that come to a worker otherwise than they were sent: it runs none of them, and leaves with the reason."""

import functools

import anyio.to_thread
import pytest
import zmq

from cards import wire
from cards.wire import Goodbye, Heartbeat, Hello, StepResult, WorkerMessage
from tests.workers.test_worker_link import FRAMES, ME, PATIENCE_S, asked, begun, worker
from workers.link import DAMAGED

UNIT = wire.encode(asked("j"))


@pytest.mark.parametrize(
    "damaged",
    [
        [UNIT[:-1] + bytes([UNIT[-1] ^ 1]), *FRAMES],
        [UNIT[:9] + bytes([UNIT[9] ^ 1]) + UNIT[10:], *FRAMES],
        [UNIT, FRAMES[0][:-1] + b"?"],
        [UNIT],
        [UNIT, *FRAMES, b"one more"],
        [b"no message"],
    ],
)
async def test_a_worker_runs_nothing_that_was_damaged_ends_its_step_and_leaves(damaged: list[bytes]) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as engine:
        engine.setsockopt(zmq.LINGER, 0)
        port = engine.bind_to_random_port("tcp://127.0.0.1")
        async with worker(f"tcp://127.0.0.1:{port}") as there:
            first = await anyio.to_thread.run_sync(functools.partial(hear, engine))
            engine.send_multipart([ME.worker.encode(), wire.encode(asked("sound")), *FRAMES])
            await begun(there.steps)
            engine.send_multipart([ME.worker.encode(), *damaged])
            there.steps.gate.set()
            await there.ended.wait()
            last = [hear(engine), hear(engine)]

    assert there.reason == DAMAGED
    assert isinstance(first, Hello)
    assert isinstance(last[0], StepResult)
    assert (last[0].id.job, last[0].error) == ("sound", None)
    assert last[1] == Goodbye(DAMAGED, clean=True)


def hear(engine: "zmq.Socket[bytes]") -> WorkerMessage:
    """What the worker says next, but for heartbeats."""
    while True:
        assert engine.poll(PATIENCE_S * 1000)
        message = wire.decode_worker_message(engine.recv_multipart()[1])
        if not isinstance(message, Heartbeat):
            return message
