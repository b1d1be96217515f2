"""What only a real server on real sockets shows: bodies that are too large, and callers that hang up."""

import anyio
import pytest

from tests.api.serving import HeldJournal, app_of, served
from tests.sim import Running, World

LIMIT = 256 * 1024
BODY = b'{"model":"toy","prompt":"a count"}'


def head(*lines: str) -> bytes:
    return "\r\n".join(["POST /v1/jobs HTTP/1.1", "host: x", "content-type: application/json", *lines, "", ""]).encode()


async def connect(base: str) -> anyio.abc.SocketStream:
    return await anyio.connect_tcp("127.0.0.1", int(base.rpartition(":")[2]))


async def everything(stream: anyio.abc.SocketStream) -> bytes:
    """All that arrives until the server closes the connection."""
    data = b""
    with anyio.fail_after(5):
        try:
            while True:
                data += await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return data


async def test_a_declared_length_is_refused_before_anything_is_read(idle: Running) -> None:
    async with served(app_of(idle)) as base, await connect(base) as stream:
        await stream.send(head(f"content-length: {LIMIT + 1}"))
        answer = await everything(stream)

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert str(LIMIT).encode() in answer
    assert b"connection: close" in answer.lower()


async def test_a_body_of_no_declared_length_is_refused_once_it_is_too_long(idle: Running) -> None:
    sent = 0
    chunk = b"4000\r\n" + b" " * 0x4000 + b"\r\n"

    async with served(app_of(idle)) as base, await connect(base) as stream:
        await stream.send(head("transfer-encoding: chunked"))
        with anyio.fail_after(5):
            try:
                while sent < 1000 * LIMIT:
                    await stream.send(chunk)
                    sent += 0x4000
            except anyio.BrokenResourceError:
                pass
        answer = await everything(stream)

    assert sent < 100 * LIMIT
    assert answer.startswith(b"HTTP/1.1 413 ") or answer == b""  # a reset may overtake the answer
    assert await idle.client.jobs() == []


async def test_a_chunked_body_just_beyond_the_limit_is_answered(idle: Running) -> None:
    async with served(app_of(idle)) as base, await connect(base) as stream:
        await stream.send(head("transfer-encoding: chunked"))
        await stream.send(b"%x\r\n%s" % (2 * LIMIT, b" " * (LIMIT + 1)))
        answer = await everything(stream)

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer.lower()


async def test_a_body_of_just_the_limit_is_read(idle: Running) -> None:
    body = BODY + b" " * (LIMIT - len(BODY))

    async with served(app_of(idle)) as base, await connect(base) as stream:
        await stream.send(head(f"content-length: {LIMIT}", "connection: close") + body)
        answer = await everything(stream)

    assert answer.startswith(b"HTTP/1.1 202 ")


async def test_who_hangs_up_after_the_request_has_a_job(idle: Running) -> None:
    async with served(app_of(idle)) as base:
        async with await connect(base) as stream:
            await stream.send(head(f"content-length: {len(BODY)}") + BODY)
        with anyio.fail_after(5):
            while not await idle.client.jobs():
                await anyio.sleep(0.001)

    (job,) = await idle.client.jobs()
    assert job.status in ("queued", "running")


async def test_who_hangs_up_within_the_request_has_none(idle: Running, caplog: pytest.LogCaptureFixture) -> None:
    async with served(app_of(idle)) as base:
        async with await connect(base) as stream:
            await stream.send(head(f"content-length: {len(BODY)}") + BODY[:10])
            await anyio.sleep(0.05)
        await anyio.sleep(0.05)

    assert await idle.client.jobs() == []
    assert caplog.text == ""


async def test_who_still_waits_when_the_server_stops_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    """As one does whose verb is for another engine, or for a store that answers no more."""
    journal = HeldJournal()
    async with World(journal=journal).engine(workers=0) as running:
        journal.hold()
        stopping = served(app_of(running))
        base = await stopping.__aenter__()
        stream = await connect(base)
        await stream.send(head(f"content-length: {len(BODY)}") + BODY)
        while not journal.holds:
            await anyio.sleep(0.001)
        await stopping.__aexit__(None, None, None)
        async with stream:
            answer = await everything(stream)
        journal.release()

    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 5" in answer.lower()
    assert b'"code":"draining"' in answer
    assert "Traceback" not in caplog.text
