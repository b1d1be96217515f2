"""The engine's end of the wire, with raw sockets at the other."""

import logging
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
import zmq

from cards import wire
from cards.wire import Goodbye, Heartbeat, Release, Shutdown
from engine.link import Arrived, ZmqLink, listen

PATIENCE_S = 30.0
BEAT = Heartbeat(0, 0, 0)


@contextmanager
def dealer(link: ZmqLink, name: bytes = b"w") -> Iterator["zmq.Socket[bytes]"]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.IDENTITY, name)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(link.address)
        yield socket


async def receive(link: ZmqLink) -> Arrived:
    with anyio.fail_after(PATIENCE_S):
        return await link.receive()


async def test_messages_carry_their_frames_both_ways() -> None:
    async with listen() as link:
        with dealer(link) as worker:
            worker.send_multipart([wire.encode(BEAT), b"one", b""])
            arrived = await receive(link)
            assert await link.send("w", Release("j", 3), [b"two", b""])
            assert worker.poll(PATIENCE_S * 1000)
            head, *frames = worker.recv_multipart()

    assert arrived == Arrived("w", BEAT, (b"one", b""))
    assert wire.decode_engine_message(head) == Release("j", 3)
    assert frames == [b"two", b""]


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"\xff" * 100],
        [b"hello"],
        [wire.encode(Shutdown())],
        [wire.encode({"type": "heartbeat", "worker": 7})],
        [wire.encode({"type": "made up"})],
        [wire.encode(BEAT)[:-1]],
        [bytes([wire.encode(BEAT)[0] ^ 1]) + wire.encode(BEAT)[1:]],
        [b"", wire.encode(BEAT)],
        [b"\x91" * 100_000],
    ],
)
async def test_bytes_that_are_none_of_ours_are_dropped_with_a_warning(
    frames: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    async with listen() as link:
        with dealer(link) as worker, caplog.at_level(logging.WARNING, "keyframe.link"):
            worker.send_multipart(frames)
            worker.send(wire.encode(BEAT))
            arrived = await receive(link)

    assert arrived.message == BEAT
    [record] = caplog.records
    assert "b'w'" in record.getMessage()


async def test_a_name_that_is_no_text_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    async with listen() as link:
        with dealer(link, b"\xff\xfe") as nobody, dealer(link) as worker:
            nobody.send(wire.encode(BEAT))
            with caplog.at_level(logging.WARNING, "keyframe.link"):
                while not caplog.records:
                    worker.send(wire.encode(BEAT))
                    await receive(link)

    assert "dropped" in caplog.records[0].getMessage()


async def test_a_message_to_nobody_is_seen() -> None:
    async with listen() as link:
        assert not await link.send("nobody", Shutdown())


async def test_a_worker_that_is_gone_is_nobody() -> None:
    async with listen() as link:
        with dealer(link) as worker:
            worker.send(wire.encode(BEAT))
            await receive(link)
            assert await link.send("w", Shutdown())
        with anyio.fail_after(PATIENCE_S):
            while await link.send("w", Shutdown()):
                await anyio.lowlevel.checkpoint()


async def test_sending_to_a_worker_that_reads_nothing_does_not_wait() -> None:
    async with listen() as link:
        with dealer(link) as worker:
            worker.send(wire.encode(BEAT))
            await receive(link)
            with anyio.fail_after(PATIENCE_S):
                while await link.send("w", Release("j", 1), [bytes(1 << 16)]):
                    pass
            worker.send(wire.encode(Goodbye("full")))
            arrived = await receive(link)

    assert arrived.message == Goodbye("full")


async def test_workers_that_never_stop_talking_leave_others_a_turn() -> None:
    async with listen() as link:
        with dealer(link) as worker:
            for _ in range(200):
                worker.send(wire.encode(BEAT))
            turns = 0

            async def take_turns() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await anyio.lowlevel.checkpoint()

            await receive(link)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(take_turns)
                for _ in range(199):
                    await receive(link)
                tasks.cancel_scope.cancel()

    assert turns > 1


async def test_what_came_while_the_engine_was_sending_is_heard() -> None:
    """A send takes the descriptor's news in: nothing would wake the receiver for what came with it."""
    async with listen() as link:
        with dealer(link) as worker:
            worker.send(wire.encode(BEAT))
            await receive(link)
            for _ in range(5):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(receive, link)
                    await anyio.lowlevel.checkpoint()
                    worker.send(wire.encode(BEAT))
                    time.sleep(0.02)  # noqa: ASYNC251 - the loop must not look before it sends
                    await link.send("w", Release("j", 1))


async def test_an_address_that_is_taken_is_an_error(tmp_path: Path) -> None:
    async with listen(f"ipc://{tmp_path}/w") as first, listen() as other:
        assert first.address == f"ipc://{tmp_path}/w"
        assert other.address != first.address
    async with listen("tcp://127.0.0.1:*") as first:
        with pytest.raises(zmq.ZMQError):
            async with listen(first.address):
                pass


async def test_a_link_at_an_address_that_it_was_given_has_nothing_among_the_temporary_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An engine that is killed would leave it there."""
    with tempfile.TemporaryDirectory() as given, tempfile.TemporaryDirectory() as temporary:  # sockets have short names
        monkeypatch.setattr(tempfile, "tempdir", temporary)
        async with listen(f"ipc://{given}/w"):
            assert not [*Path(temporary).iterdir()]
        async with listen() as link:
            assert temporary in link.address


async def test_an_address_of_its_own_is_this_users_alone() -> None:
    async with listen() as link:
        socket = Path(link.address.removeprefix("ipc://"))

        assert socket.parent.stat().st_mode & 0o077 == 0
        assert socket.exists()
    assert not socket.parent.exists()
