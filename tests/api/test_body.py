"""A body is decoded beside the event loop if it is large."""

import threading
from typing import Any

import anyio
from msgspec import Struct, json
from starlette.requests import Request

from api.body import AT_ONCE, body

PATIENCE_S = 10.0
decoding = threading.Event()
go = threading.Event()


class Slow(Struct):
    """Takes until `go` is set to be made out of JSON."""

    text: str

    def __post_init__(self) -> None:
        decoding.set()
        assert go.wait(PATIENCE_S), "nobody could say go"


def posted(data: bytes) -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": data, "more_body": False}

    return Request({"type": "http", "method": "POST", "headers": [(b"content-type", b"application/json")]}, receive)


async def test_others_are_served_while_a_large_one_is_decoded() -> None:
    text = "a" * AT_ONCE
    got: list[Slow] = []

    async def read() -> None:
        got.append(await body(posted(json.encode({"text": text})), Slow, limit=2 * AT_ONCE))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        while not decoding.is_set():
            await anyio.sleep(0.001)
        assert got == []
        go.set()

    assert got[0].text == text
