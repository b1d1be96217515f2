"""An engine over HTTP, as the commands need it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import httpx
import msgspec

from ops.errors import NoEngine, OpsError, Refused

JobObject = dict[str, Any]
"""A job as the API shows it."""

LAST = ("job_completed", "job_failed", "job_cancelled", "job_terminated", "job_moved_away")
"""The events that end a job. Another follows only if somebody gives it a new chance."""

PATIENCE = 20
"""How often in a row an engine may not answer, half a second apart."""

SILENCE_S = 30.0
"""A stream gives a sign every ten seconds; one that does not is dead."""


class Remote:
    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def submit(self, request: dict[str, Any], key: str | None = None) -> JobObject:
        headers = {"Idempotency-Key": key} if key else {}
        return await self._json("POST", "/v1/jobs", json=request, headers=headers)

    async def job(self, job: str) -> JobObject:
        return await self._json("GET", f"/v1/jobs/{_named(job)}")

    async def jobs(self, **query: str | int) -> list[JobObject]:
        data: list[JobObject] = (await self._json("GET", "/v1/jobs", params=query))["data"]
        return data

    async def cancel(self, job: str) -> JobObject:
        return await self._json("POST", f"/v1/jobs/{_named(job)}/cancel")

    async def act(self, job: str, verb: str, **body: Any) -> JobObject:
        """What was asked to be done to a job, and what came of it."""
        return await self._json("POST", f"/v1/jobs/{_named(job)}/{verb}", **({"json": body} if body else {}))

    async def purge(self, job: str) -> None:
        await self._ask("DELETE", f"/v1/jobs/{_named(job)}")

    async def take_in(self, bundle: Path) -> JobObject:
        headers = {"Content-Type": "application/x-tar"}
        return await self._json("POST", "/v1/bundles", content=_chunks(bundle), headers=headers, timeout=None)

    async def collect(self, *, dry_run: bool, take_over: bool = False) -> JobObject:
        asked = {"dry_run": dry_run} | ({"take_over": True} if take_over else {})  # which older engines do not know
        return await self._json("POST", "/v1/gc", json=asked, timeout=None)

    async def workers(self) -> list[JobObject]:
        data: list[JobObject] = (await self._json("GET", "/v1/workers"))["data"]
        return data

    async def dismiss(self, worker: str, how: str, **body: Any) -> JobObject:
        return await self._json("POST", f"/v1/workers/{_named(worker)}/{how}", **({"json": body} if body else {}))

    async def artifact(self, job: str, name: str) -> bytes:
        return (await self._ask("GET", f"/v1/jobs/{_named(job)}/artifacts/{_named(name)}")).content

    async def events(self, job: str) -> AsyncIterator[dict[str, Any]]:
        """Everything that has happened and happens to the job, to its end; a dropped stream is taken up again.

        Raises NoEngine once none has answered for a while.
        """
        last = failures = 0
        kind = ""
        while failures < PATIENCE:
            headers = {"Accept": "text/event-stream", "Last-Event-ID": str(last)}
            try:
                async with self._http.stream("GET", f"/v1/jobs/{_named(job)}/events", headers=headers) as stream:
                    if stream.status_code == httpx.codes.NO_CONTENT:  # there is nothing after this one
                        return
                    async for event in _events(stream):
                        failures = 0
                        last, kind = event["position"], event["type"]
                        yield event
                    if kind in LAST:  # the engine had no more to say
                        return
            except httpx.TransportError:
                failures += 1  # the engine restarts, or the network does; the log has the rest
            await anyio.sleep(0.5)
        raise NoEngine(f"no engine answers at {self._http.base_url} any more; job {job} is in its log")

    async def _json(self, method: str, path: str, **options: Any) -> JobObject:
        decoded: JobObject = (await self._ask(method, path, **options)).json()
        return decoded

    async def _ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            response = await self._http.request(method, path, **options)
        except httpx.TransportError as error:
            raise NoEngine(f"no engine answers at {self._http.base_url}: {error}") from error
        if response.is_error:
            raise Refused(_message(response), _kind(response))
        return response


def _named(name: str) -> str:
    """A part of a path, whatever is in it. Raises Refused for what names nothing."""
    if name in ("", ".", "..") or "/" in name:  # which no path keeps apart
        raise Refused(f"no job {name!r}", "job_not_found")
    return quote(name, safe="")


async def _chunks(file: Path) -> AsyncIterator[bytes]:
    async with await anyio.open_file(file, "rb") as opened:
        while chunk := await opened.read(1 << 20):
            yield chunk


@asynccontextmanager
async def connect(url: str, *, elsewhere: bool = False) -> AsyncIterator[Remote]:
    """Proxies of the environment are for an engine `elsewhere`, not for one on this machine."""
    try:
        async with httpx.AsyncClient(base_url=url, timeout=SILENCE_S, trust_env=elsewhere) as http:
            yield Remote(http)
    except httpx.InvalidURL as error:
        raise NoEngine(f"{url!r} is no URL of an engine: {error}") from error


async def _events(stream: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    if stream.is_server_error:  # it starts or stops: ask again
        return
    if stream.is_error:
        await stream.aread()
        raise OpsError(_message(stream))
    async for line in stream.aiter_lines():
        if line.startswith("data:"):
            yield msgspec.json.decode(line.removeprefix("data:"))


def _kind(response: httpx.Response) -> str | None:
    try:
        return str(response.json()["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return None


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{response.request.url} answered {response.status_code}"
