"""People: they order until they are answered, read along, leave and come back, change their mind."""

import random
from contextlib import suppress
from typing import Any

import anyio
import httpx
import msgspec
from msgspec import Struct, field

from tests.chaos.place import Place

PATIENCE = httpx.Timeout(3.0)
AGAIN_S = (0.02, 0.3)

ORDERS: tuple[dict[str, Any], ...] = (
    {"prompt": "a count sleep=0.02", "steps": 5},
    {"prompt": "a count sleep=0.05 big=150000", "steps": 8, "preview_every": 3},
    {"prompt": "a count sleep=0.1 start=1", "steps": 15},
    {"prompt": "a count", "steps": 40},
    {"prompt": "a count big=2000000 sleep=0.05", "steps": 4},
    {"prompt": "a count adaptive=1 sleep=0.02", "steps": 10},
    {"prompt": "a count sleep=0.01 fail=3", "steps": 6},
)


class Answered(Struct):
    """All that people were told."""

    orders: dict[str, dict[str, Any]] = field(default_factory=dict)
    jobs: dict[str, str] = field(default_factory=dict)
    """Of each key, once its order was accepted."""
    read: dict[str, list[tuple[int, int, str]]] = field(default_factory=dict)
    """Position, version and type of the events that each reader got."""
    ended: set[str] = field(default_factory=set)
    """The jobs whose reader was told that there is no more."""
    told: list[tuple[str, str, str]] = field(default_factory=list)
    """Job, verb and outcome of what was asked for beside that."""
    asked: set[tuple[str, str]] = field(default_factory=set)
    """Job and verb of all that may have been done, answered or not."""
    problems: list[str] = field(default_factory=list)


class Callers:
    def __init__(self, place: Place, http: httpx.AsyncClient, answered: Answered) -> None:
        self._place = place
        self._http = http
        self._answered = answered

    async def customer(self, name: str, chance: random.Random) -> None:
        """One order, and what somebody does about it."""
        order = {"model": "toy", "seed": chance.randrange(3), **chance.choice(ORDERS)}
        self._answered.orders[name] = order
        job = await self._order(name, order, chance)
        async with anyio.create_task_group() as tasks:
            if chance.random() < 0.6:
                tasks.start_soon(self._read, job, chance)
            if chance.random() < 0.2:
                tasks.start_soon(self._verb, job, "cancel", chance.uniform(0, 2), chance)
            if chance.random() < 0.3:
                tasks.start_soon(self._pause, job, chance)
            if chance.random() < 0.3:
                await self._order(name, order, chance)

    async def _order(self, key: str, order: dict[str, Any], chance: random.Random) -> str:
        """Until it is accepted; now and then at two engines at once."""
        while True:
            async with anyio.create_task_group() as tasks:
                for _ in range(chance.choice((1, 1, 1, 2))):
                    tasks.start_soon(self._order_once, key, order, chance)
            if key in self._answered.jobs:
                return self._answered.jobs[key]
            await anyio.sleep(chance.uniform(*AGAIN_S))

    async def _order_once(self, key: str, order: dict[str, Any], chance: random.Random) -> None:
        answer = await self._post("/v1/jobs", chance, order, {"Idempotency-Key": key})
        if answer is None:
            return
        job = answer["id"]
        if self._answered.jobs.setdefault(key, job) != job:
            self._answered.problems.append(f"key {key} stands for {self._answered.jobs[key]} and for {job}")

    async def _pause(self, job: str, chance: random.Random) -> None:
        await self._verb(job, "pause", chance.uniform(0, 1), chance)
        if chance.random() < 0.8:
            await self._verb(job, "resume", chance.uniform(0, 2), chance)

    async def _verb(self, job: str, verb: str, after_s: float, chance: random.Random) -> None:
        await anyio.sleep(after_s)
        self._answered.asked.add((job, verb))
        body = {"reason": "somebody wants it"} if verb == "pause" else None
        while (answer := await self._post(f"/v1/jobs/{job}/{verb}", chance, body)) is None:
            await anyio.sleep(chance.uniform(*AGAIN_S))
        self._answered.told.append((job, verb, answer["outcome"]))

    async def _post(
        self, path: str, chance: random.Random, body: Any = None, headers: dict[str, str] | None = None
    ) -> Any:
        """What any engine answers; None if it could not be asked, or cannot say now."""
        url = self._place.some(chance).url
        try:
            answer = await self._http.post(url + path, json=body, headers=headers)
        except httpx.HTTPError:
            return None
        if answer.is_success:
            return answer.json()
        if answer.status_code == 409 and answer.json()["error"]["code"] == "not_allowed":
            return {"outcome": "not_allowed"}  # it has ended, or is paused already
        if answer.status_code != 503:
            self._answered.problems.append(f"POST {path} was answered {answer.status_code}: {answer.text}")
        return None

    async def _read(self, job: str, chance: random.Random) -> None:
        """Every event, from whatever engine, until one says that there are no more."""
        read = self._answered.read[job] = []
        while job not in self._answered.ended:
            with suppress(httpx.HTTPError):  # it comes back, and goes on where it was
                await self._read_on(job, read, chance)
            await anyio.sleep(chance.uniform(*AGAIN_S))

    async def _read_on(self, job: str, read: list[tuple[int, int, str]], chance: random.Random) -> None:
        leaves_after = chance.choice((1, 2, 5, 1000))
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": str(read[-1][0])} if read else {})
        url = f"{self._place.some(chance).url}/v1/jobs/{job}/events"
        async with self._http.stream("GET", url, headers=headers) as answer:
            if answer.status_code == 204:
                self._answered.ended.add(job)
            elif answer.status_code not in (200, 503):
                self._answered.problems.append(f"GET {url} was answered {answer.status_code}")
            async for line in answer.aiter_lines():
                if answer.status_code == 200 and line.startswith("data: "):
                    read.append(_event(line))
                    leaves_after -= 1
                    if leaves_after == 0:
                        return


def _event(line: str) -> tuple[int, int, str]:
    event = msgspec.json.decode(line.removeprefix("data: "))
    return event["position"], event["version"], event["type"]
