"""Those who use a simulated world: they submit, watch, look and cancel, lose their connections and ask again."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from random import Random
from typing import TYPE_CHECKING

import anyio
from msgspec import Struct

from cards.request import GenerationRequest
from engine.client import Client
from engine.errors import ArtifactNotFound, Draining, NotAllowed, StoreTrouble
from engine.job import Job
from engine.operate import Operated
from engine.views import Told
from tests.simulation.host import ConnectionLost

if TYPE_CHECKING:
    from tests.simulation.world import World

PROMPTS = (
    "a count",
    "a count",
    "a count",
    "a count big=70000",
    "a count adaptive=1",
    "an unknown count",
    "a count fail=1",
    "a count oom=0",
    "a count die=1",
)

AGAIN = (ConnectionLost, StoreTrouble, Draining, TimeoutError)
"""What a caller takes for a reason to ask again."""


class Wish(Struct, frozen=True):
    """One job as its caller wants it."""

    at_s: float
    request: GenerationRequest
    key: str | None
    copies: int
    """How many submit it at once, under the one key."""
    watchers: int
    cancel_after_s: float | None
    pause_after_s: float | None


def wishes(chance: Random, count: int, within_s: float) -> list[Wish]:
    return [_wish(chance, n, within_s) for n in range(count)]


def _wish(chance: Random, number: int, within_s: float) -> Wish:
    request = GenerationRequest(
        model="toy",
        prompt=chance.choice(PROMPTS),
        steps=chance.randint(1, 4),
        seed=chance.randrange(2),
        preview_every=chance.choice([0, 2]),
        priority=chance.choice([0, 0, 0, 1, 5]),
    )
    key = f"key-{number}" if chance.random() < 0.8 else None
    return Wish(
        at_s=chance.uniform(0, within_s),
        request=request,
        key=key,
        copies=chance.choice([1, 1, 1, 3]) if key else 1,
        watchers=chance.choice([0, 1, 1, 2]),
        cancel_after_s=chance.expovariate(1) if chance.random() < 0.25 else None,
        pause_after_s=chance.expovariate(2) if chance.random() < 0.25 else None,
    )


class Caller:
    """One who wants one job. `patience_s` is how long it waits for an answer before it hangs up."""

    def __init__(self, world: "World", wish: Wish, chance: Random) -> None:
        self._world = world
        self._wish = wish
        self._chance = chance
        self._oracle = world.oracle

    async def live(self) -> None:
        """Until all that it wants to know of its job is known."""
        await asyncio.sleep(self._wish.at_s)
        async with anyio.create_task_group() as tasks:
            for _ in range(self._wish.copies - 1):
                tasks.start_soon(self._submit)
            if (job_id := await self._submit()) is None:
                return
            for _ in range(self._wish.watchers):
                tasks.start_soon(self._watch, job_id)
            tasks.start_soon(self._look, job_id)
            if self._wish.pause_after_s is not None:
                tasks.start_soon(self._pause_for_a_while, job_id, self._wish.pause_after_s)
            if self._wish.cancel_after_s is not None:
                await asyncio.sleep(self._wish.cancel_after_s)
                await self._cancel(job_id)

    async def _submit(self) -> str | None:
        """The job's id, or None for one that cannot be asked for again: it may be there or not."""

        async def ask(client: Client) -> Job:
            job = await client.submit(self._wish.request, self._wish.key)
            await self._oracle.accepted(job, self._wish.request, self._wish.key)
            return job

        while True:
            try:
                with anyio.fail_after(self._chance.uniform(0.01, 5)):
                    return (await self._world.call(ask)).id
            except AGAIN:
                if self._wish.key is None:
                    return None
            await self._pause()

    async def _cancel(self, job_id: str) -> None:
        async def ask(client: Client) -> None:
            await self._oracle.cancelled(job_id, await client.cancel(job_id, "changed my mind"))

        self._oracle.asked_to_cancel(job_id)
        while True:
            try:
                with anyio.fail_after(self._chance.uniform(0.01, 5)):
                    return await self._world.call(ask)
            except AGAIN:
                await self._pause()

    async def _pause_for_a_while(self, job_id: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await self._insist(lambda client: client.verbs.pause(job_id))
        await asyncio.sleep(self._chance.expovariate(1))
        await self._insist(lambda client: client.verbs.resume(job_id))

    async def _insist(self, verb: Callable[[Client], Awaitable[Operated]]) -> None:
        """Until it is done, or is found to be of no use."""

        async def ask(client: Client) -> None:
            operated = await verb(client)
            await self._oracle.seen(operated.job)

        while True:
            try:
                with anyio.fail_after(self._chance.uniform(0.01, 5)):
                    return await self._world.call(ask)
            except NotAllowed:
                return None
            except AGAIN:
                await self._pause()

    async def _watch(self, job_id: str) -> None:
        """Read the job's events to the end, over as many connections as it takes."""
        read: list[Told] = []

        async def ask(client: Client) -> None:
            after = read[-1].position if read else 0
            async with aclosing(client.watch(job_id, after=after, heartbeat_s=2.0)) as pages:
                async for page in pages:
                    await self._oracle.paged(job_id, read, page)
                    read.extend(page)
            await self._oracle.read_to_the_end(job_id, read)

        while True:
            try:
                with anyio.fail_after(self._chance.expovariate(0.3)):
                    return await self._world.call(ask)
            except AGAIN:
                await self._pause()

    async def _look(self, job_id: str) -> None:
        """Ask for the job now and then until it has ended."""

        async def ask(client: Client) -> Job:
            job = await client.job(job_id)
            await self._oracle.seen(job)
            return job

        while True:
            try:
                if (job := await self._world.call(ask)).terminal:
                    return await self._fetch(job)
            except AGAIN:
                pass
            await asyncio.sleep(self._chance.uniform(0.05, 3))

    async def _fetch(self, job: Job) -> None:
        """Every artifact of a job that has ended is there."""

        async def ask(client: Client) -> None:
            for name in job.artifacts:
                ref, data = await client.artifact(job.id, name)
                self._oracle.fetched(job.id, ref, data)

        try:
            await self._world.call(ask)
        except ArtifactNotFound as error:
            if len(self._world.hosts) == 1:
                raise
            raise ConnectionLost from error  # another engine has ended the job, and this one has yet to learn of it

    async def _pause(self) -> None:
        await asyncio.sleep(self._chance.uniform(0.05, 1))
