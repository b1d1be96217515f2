"""A job's log over HTTP: pages, streams, readers that come and go."""

import random
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import anyio
import httpx
import pytest

from tests.api.serving import HeldJournal, app_of, frames, listeners, log_of, positions, served
from tests.sim import Running, World, request

STREAM = {"accept": "text/event-stream"}


class Reader:
    """A client of one job's stream, over a connection of its own."""

    def __init__(self, base: str, job: str) -> None:
        self._url = f"{base}/v1/jobs/{job}/events"

    @asynccontextmanager
    async def open(self, after: int | None = None) -> AsyncIterator[httpx.Response]:
        last = {"last-event-id": str(after)} if after is not None else {}
        async with (
            httpx.AsyncClient(timeout=20) as client,
            client.stream("GET", self._url, headers=STREAM | last) as answer,
        ):
            yield answer

    async def read(self, after: int | None = None, *, nbytes: int | None = None, events: int | None = None) -> bytes:
        """What arrives until the stream ends, or until there is enough of it; then the reader hangs up."""
        data = b""
        async with self.open(after) as answer, aclosing(answer.aiter_raw()) as parts:
            async for part in parts:
                data += part
                if nbytes is not None and len(data) >= nbytes:
                    return data[:nbytes]
                if events is not None and len(positions(data)) >= events:
                    return data
        return data


# -- pages ----------------------------------------------------------------------------------------------------------


async def test_pages_of_the_log_cover_it_once(running: Running, http: httpx.AsyncClient) -> None:
    job = (await running.client.submit(request(steps=20))).id
    await running.ended(job)

    seen: list[int] = []
    more = True
    while more:
        page = (await http.get(f"/v1/jobs/{job}/events", params={"after": seen[-1] if seen else 0, "limit": 7})).json()
        seen += [event["position"] for event in page["data"]]
        more = page["has_more"]

    assert seen == await log_of(running, job)


async def test_an_event_says_what_when_and_where(running: Running, http: httpx.AsyncClient) -> None:
    job = (await running.client.submit(request(seed=11))).id
    await running.ended(job)

    first, *_, last = (await http.get(f"/v1/jobs/{job}/events")).json()["data"]

    assert (first["type"], first["version"], first["data"]["request"]["seed"]) == ("job_submitted", 1, 11)
    assert (last["type"], last["data"]) == ("job_completed", {"type": "job_completed"})
    assert first["at"] <= last["at"]


async def test_head_of_a_log_never_streams(http_idle: httpx.AsyncClient, idle: Running) -> None:
    job = (await idle.client.submit(request())).id

    with anyio.fail_after(5):
        answer = await http_idle.head(f"/v1/jobs/{job}/events", headers=STREAM)

    assert answer.headers["content-type"] == "application/json"


# -- streams --------------------------------------------------------------------------------------------------------


async def test_a_stream_is_the_log_and_ends_with_the_job(running: Running) -> None:
    job = (await running.client.submit(request(steps=10))).id

    async with served(app_of(running)) as base, Reader(base, job).open() as answer:
        data = await answer.aread()

    assert positions(data) == await log_of(running, job)
    assert [frame["event"] for frame in frames(data)][-1] == "job_completed"
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-accel-buffering"] == "no"
    assert listeners(running) == 0


async def test_two_hundred_disconnects_lose_and_repeat_nothing(running: Running) -> None:
    chance = random.Random(20)
    job = (await running.client.submit(request(steps=2_100))).id
    received: list[int] = []

    async with served(app_of(running)) as base:
        reader = Reader(base, job)
        for _ in range(200):
            last = received[-1] if received else None
            received += positions(await reader.read(last, nbytes=chance.randrange(6_000)))
        received += positions(await reader.read(received[-1]))
        await running.until(lambda: listeners(running) == 0)

    log = await log_of(running, job)
    assert len(log) > 2_000
    assert received == log


async def test_the_header_wins_over_the_parameter(running: Running, http: httpx.AsyncClient) -> None:
    job = (await running.client.submit(request())).id
    await running.ended(job)
    log = await log_of(running, job)

    url = f"/v1/jobs/{job}/events?after={log[1]}"
    by_parameter = await http.get(url, headers=STREAM)
    by_header = await http.get(url, headers=STREAM | {"last-event-id": str(log[4])})

    assert positions(by_parameter.content) == log[2:]
    assert positions(by_header.content) == log[5:]


async def test_after_the_last_event_an_eventsource_is_told_to_stop(running: Running, http: httpx.AsyncClient) -> None:
    job = (await running.client.submit(request())).id
    await running.ended(job)
    last = (await log_of(running, job))[-1]

    for after in (last, last + 1, 10**17):
        answer = await http.get(f"/v1/jobs/{job}/events", headers=STREAM | {"last-event-id": str(after)})
        assert (answer.status_code, answer.content) == (204, b"")


async def test_a_position_that_is_not_there_yet_is_waited_for(idle: Running) -> None:
    job = (await idle.client.submit(request())).id

    async with served(app_of(idle, heartbeat_s=0.02)) as base:
        beats = await Reader(base, job).read(10**17, nbytes=40)

    assert beats.startswith(b": heartbeat\n\n: heartbeat\n\n")


async def test_nothing_is_told_before_it_is_durable() -> None:
    journal = HeldJournal()
    async with World(journal=journal).engine(workers=0) as running, served(app_of(running)) as base:
        job = (await running.client.submit(request())).id
        await running.until(lambda: job in running.engine.ledger.actors)
        await running.engine.ledger.settled()
        durable = await log_of(running, job)

        async with Reader(base, job).open() as answer:
            parts = answer.aiter_raw()
            data = b""
            while len(positions(data)) < len(durable):
                data += await anext(parts)
            journal.hold()
            running.add_worker()
            await running.until(lambda: running.engine.results.steps > 1)
            with anyio.move_on_after(0.1) as silence:
                data += await anext(parts)

    assert silence.cancelled_caught
    assert positions(data) == durable


async def test_what_becomes_durable_is_told_at_once() -> None:
    journal = HeldJournal()
    async with World(journal=journal).engine(workers=0) as running, served(app_of(running)) as base:
        job = (await running.client.submit(request())).id
        await running.until(lambda: job in running.engine.ledger.actors)
        journal.hold()
        running.add_worker()
        await running.until(lambda: running.engine.results.steps > 1)

        async with Reader(base, job).open() as answer:
            journal.release()
            with anyio.fail_after(5):
                data = await answer.aread()

    assert [frame["event"] for frame in frames(data)][-1] == "job_completed"


async def test_a_silent_stream_says_that_it_is_there(idle: Running) -> None:
    job = (await idle.client.submit(request())).id
    await idle.until(lambda: job in idle.engine.ledger.actors)

    async with served(app_of(idle, heartbeat_s=0.005)) as base:
        data = await Reader(base, job).read(nbytes=2_000)

    assert data.count(b"\n\n: heartbeat\n\n") > 3
    assert positions(data) == await log_of(idle, job)


async def test_readers_that_go_leave_nothing_and_cancel_nothing(idle: Running) -> None:
    job = (await idle.client.submit(request())).id

    async with served(app_of(idle)) as base:
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(lambda: Reader(base, job).read(events=1))
        await idle.until(lambda: listeners(idle) == 0, within_s=2)

    idle.add_worker()
    assert (await idle.ended(job)).state == "completed"


async def test_a_reader_that_never_reads_can_go_too(running: Running) -> None:
    job = (await running.client.submit(request(steps=1_500))).id
    await running.ended(job)

    async with served(app_of(running)) as base:
        port = int(base.rpartition(":")[2])
        stream = await anyio.connect_tcp("127.0.0.1", port)
        await stream.send(
            f"GET /v1/jobs/{job}/events HTTP/1.1\r\nhost: x\r\naccept: text/event-stream\r\n\r\n".encode()
        )
        await anyio.sleep(0.05)
        await stream.aclose()
        await running.until(lambda: listeners(running) == 0, within_s=2)


async def test_a_store_in_trouble_ends_the_stream_and_the_reader_goes_on_later() -> None:
    journal = HeldJournal()
    async with World(journal=journal).engine() as running, served(app_of(running)) as base:
        job = (await running.client.submit(request(steps=1_200))).id
        await running.ended(job)
        reader = Reader(base, job)

        journal.reads_left = 1
        before = positions(await reader.read())
        async with httpx.AsyncClient() as client:
            refused = await client.get(f"{base}/v1/jobs/{job}/events")
        journal.reads_left = None
        after = positions(await reader.read(before[-1]))

        assert len(before) == 1_000
        assert refused.status_code == 503
        assert before + after == await log_of(running, job)


async def test_a_job_that_ends_while_its_log_is_read_is_told_to_the_end() -> None:
    journal = HeldJournal()
    async with World(journal=journal).engine(workers=0) as running, served(app_of(running)) as base:
        job = (await running.client.submit(request())).id
        await running.until(lambda: job in running.engine.ledger.actors)

        async def end_it() -> None:
            running.add_worker()
            await running.until(lambda: job not in running.engine.ledger.actors)

        journal.after_an_empty_read = end_it
        received = positions(await Reader(base, job).read())

        assert received == await log_of(running, job)


@pytest.mark.parametrize("accept", ["text/event-stream", "text/html, text/event-stream;q=0.9"])
async def test_who_asks_for_a_stream_gets_one(running: Running, http: httpx.AsyncClient, accept: str) -> None:
    job = (await running.client.submit(request())).id
    await running.ended(job)

    answer = await http.get(f"/v1/jobs/{job}/events", headers={"accept": accept})

    assert positions(answer.content) == await log_of(running, job)
