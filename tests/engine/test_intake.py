"""Requests are checked beside the event loop: an engine does everything else meanwhile."""

import threading
from collections.abc import Awaitable, Callable

import anyio
import anyio.from_thread
import pytest

from cards.family import Notice
from cards.request import RequestChanges, ResolvedRequest
from engine.client import Client
from engine.intake import in_a_thread
from engine.job import Job, State
from tests.sim import World, request
from tests.toy import ToyFamily

PATIENCE_S = 10.0
"""After which a check gives up: it would have kept the loop for good."""


class Slow(ToyFamily):
    """Each check takes until `go` is set, from the moment that `slow` is."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = False
        self.checking = anyio.Event()
        self.go = threading.Event()

    def notices(self, request: ResolvedRequest) -> tuple[Notice, ...]:
        if self.slow:
            anyio.from_thread.run_sync(self.checking.set)
            assert self.go.wait(PATIENCE_S), "nobody could say go"
        return super().notices(request)


async def submit(client: Client, job: str) -> Job:
    return await client.submit(request("unknown"))


async def fork(client: Client, job: str) -> Job:
    return await client.fork(job, 2, RequestChanges(prompt="unknown"))


@pytest.mark.parametrize("ask", [submit, fork])
async def test_an_engine_goes_on_while_a_request_is_checked(ask: Callable[[Client, str], Awaitable[Job]]) -> None:
    family, asked = Slow(), list[Job]()
    world = World(families=(family,))
    world.aside = in_a_thread
    async with world.engine() as running:
        job = await running.ended((await running.client.submit(request())).id)
        open_one = await running.client.submit(request())
        family.slow = True

        async def checked() -> None:
            asked.append(await ask(running.client, job.id))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(checked)
            await family.checking.wait()
            assert (await running.ended(open_one.id)).state is State.COMPLETED
            assert asked == []
            family.go.set()

    assert [notice.code for notice in asked[0].notices] == ["unknown_words"]
