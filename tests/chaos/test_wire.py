"""The wire itself: what it does to messages between real sockets, so that its troubles are troubles of somebody."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import zmq
import zmq.asyncio

from cards import wire
from cards.wire import Goodbye, Heartbeat, Release
from tests.chaos.hosts import free_port
from tests.chaos.wire import Trouble, Wire
from tests.faults.damage import DamagingWire

PATIENCE_S = 30.0
BEAT, BYE = wire.encode(Heartbeat(0, 0, 0)), wire.encode(Goodbye("full"))

Socket = zmq.asyncio.Socket


@asynccontextmanager
async def ends(kind: type[Wire]) -> AsyncIterator[tuple[Wire, Socket, Socket]]:
    """A wire with an engine's socket at one end and a worker's at the other, who have heard of each other."""
    with zmq.asyncio.Context() as context, context.socket(zmq.ROUTER) as engine, context.socket(zmq.DEALER) as worker:
        between = kind(free_port(), engine.bind_to_random_port("tcp://127.0.0.1"))
        for socket in (engine, worker):
            socket.setsockopt(zmq.LINGER, 0)
        worker.setsockopt(zmq.IDENTITY, b"w")
        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(between.run)
                worker.connect(f"tcp://127.0.0.1:{between.port}")
                await worker.send(BYE)
                assert await engine.recv_multipart() == [b"w", BYE]
                yield between, engine, worker
                tasks.cancel_scope.cancel()


async def test_messages_pass_both_ways_with_all_their_frames() -> None:
    async with ends(Wire) as (_, engine, worker):
        await engine.send_multipart([b"w", wire.encode(Release("j", 1)), b"", b"x" * 100_000])
        assert await worker.recv_multipart() == [wire.encode(Release("j", 1)), b"", b"x" * 100_000]


async def test_what_is_lost_is_whole_messages() -> None:
    async with ends(Wire) as (between, engine, worker):
        async with between.trouble(Trouble.NO_HEARTBEATS):
            await worker.send(BEAT)
            await worker.send_multipart([BYE, b"frame"])
            assert await engine.recv_multipart() == [b"w", BYE, b"frame"]
        await worker.send(BEAT)
        assert await engine.recv_multipart() == [b"w", BEAT]


async def test_what_is_damaged_is_a_bit_of_the_next_messages_of_one_direction() -> None:
    async with ends(DamagingWire) as (between, engine, worker):
        assert isinstance(between, DamagingWire)
        between.damage(2, to_engine=True)
        for message in ([BEAT], [BYE, b"first"], [BYE, b"second"], [BYE, b"third"]):
            await worker.send_multipart(message)
        beat, first, second, third = [(await engine.recv_multipart())[1:] for _ in range(4)]

    assert (beat, third) == ([BEAT], [BYE, b"third"])
    assert (first[0], second[1]) == (BYE, b"second")
    assert bits_apart(first[1], b"first") == bits_apart(second[0], BYE) == 1


def bits_apart(one: bytes, other: bytes) -> int:
    return sum((a ^ b).bit_count() for a, b in zip(one, other, strict=True))
