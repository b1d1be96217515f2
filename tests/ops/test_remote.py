"""An engine over HTTP, as the commands see it: with a server of the test's own."""

import json
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import make_url

from ops.errors import JobEnded, NoEngine, OpsError
from ops.generate import _save, unfinished
from ops.remote import Remote, connect
from ops.settings import Settings
from ops.whereabouts import Whereabouts, announced, running_engine

Handler = Callable[[httpx.Request], httpx.Response]


@asynccontextmanager
async def server(handler: Handler) -> AsyncIterator[Remote]:
    async with httpx.AsyncClient(base_url="http://engine", transport=httpx.MockTransport(handler)) as http:
        yield Remote(http)


def event(position: int, kind: str = "step_completed") -> dict[str, Any]:
    return {"position": position, "type": kind, "data": {}}


class Dropping(httpx.AsyncByteStream):
    """A stream of events that breaks off in the middle of a line."""

    def __init__(self, events: Sequence[dict[str, Any]], *, breaks: bool) -> None:
        self._events, self._breaks = events, breaks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for one in self._events:
            yield f"id: {one['position']}\ndata: {json.dumps(one)}\n\n: heartbeat\n\n".encode()
        if self._breaks:
            yield b'data: {"position"'
            raise httpx.RemoteProtocolError("peer closed connection")


async def test_a_stream_that_drops_is_taken_up_where_it_was() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers["Last-Event-ID"])
        if len(asked) == 1:
            return httpx.Response(200, stream=Dropping([event(3), event(5)], breaks=True))
        if len(asked) == 2:
            return httpx.Response(503)
        last = [event(8), event(9, "job_failed"), event(11, "job_retried"), event(12, "job_completed")]
        return httpx.Response(200, stream=Dropping(last, breaks=False))

    async with server(answer) as remote:
        seen = [one["position"] async for one in remote.events("j")]

    assert seen == [3, 5, 8, 9, 11, 12]
    assert asked == ["0", "5", "5"]


async def test_there_is_nothing_after_the_end() -> None:
    async with server(lambda request: httpx.Response(204)) as remote:
        assert [one async for one in remote.events("j")] == []


@pytest.mark.parametrize(
    ("response", "says"),
    [
        (httpx.Response(404, json={"error": {"message": "no job 'j'"}}), "no job 'j'"),
        (httpx.Response(500, text="<html>"), "http://engine/v1/jobs/j.* answered 500"),
        (httpx.Response(422, json={"error": "odd"}), "answered 422"),
        (httpx.Response(422, json=["odd"]), "answered 422"),
    ],
)
async def test_an_error_is_said_in_the_engines_words(response: httpx.Response, says: str) -> None:
    async with server(lambda request: response) as remote:
        with pytest.raises(OpsError, match=says):
            await remote.job("j")


async def test_an_unknown_job_has_no_events() -> None:
    async with server(lambda request: httpx.Response(404, json={"error": {"message": "no job 'j'"}})) as remote:
        with pytest.raises(OpsError, match="no job 'j'"):
            await anext(aiter(remote.events("j")))


async def test_a_key_travels_as_a_header() -> None:
    keys: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers.get("Idempotency-Key"))
        return httpx.Response(202, json={"id": "j"})

    async with server(answer) as remote:
        await remote.submit({}, key="k")
        await remote.submit({})

    assert keys == ["k", None]


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense", "http://[", "ftp://somewhere"])
async def test_where_no_engine_is_is_said_in_one_line(url: str) -> None:
    with pytest.raises(NoEngine, match=r"no engine answers at|is no URL of an engine"):
        async with connect(url) as remote:
            await remote.job("j")


# -- generate ---------------------------------------------------------------------------------------------------


def jobs(*found: dict[str, Any]) -> Handler:
    """A server with these unfinished jobs."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/jobs":
            rows = [{"id": job["id"]} for job in found if job["status"] == request.url.params["status"]]
            return httpx.Response(200, json={"data": rows})
        return httpx.Response(200, json=next(job for job in found if job["id"] == request.url.path.split("/")[-1]))

    return answer


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"prompt": "a", "seed": 1}, "first"),
        ({"prompt": "a", "seed": 2}, "second"),
        ({"prompt": "a"}, "first"),
        ({"prompt": "a", "seed": 3}, None),
        ({"prompt": "b", "seed": 1}, None),
    ],
)
async def test_generate_goes_on_with_the_job_that_the_same_words_began(
    request_: dict[str, Any], expected: str | None
) -> None:
    first = {"id": "first", "status": "queued", "prompt": "a", "seed": 1}
    second = {"id": "second", "status": "running", "prompt": "a", "seed": 2}
    async with server(jobs(first, second)) as remote:
        found = await unfinished(remote, request_)

    assert (found and found["id"]) == expected


@pytest.mark.parametrize(
    ("job", "says"),
    [
        ({"status": "failed", "error": {"class": "oom", "message": "too big"}}, "j failed: oom: too big"),
        ({"status": "cancelled", "error": None}, "j cancelled: cancelled: the job did not complete"),
    ],
)
async def test_a_job_that_did_not_complete_is_said_to_and_writes_nothing(
    tmp_path: Path, job: dict[str, Any], says: str
) -> None:
    async with server(lambda request: httpx.Response(500)) as remote:
        with pytest.raises(JobEnded, match=says):
            await _save(remote, {"id": "j"} | job, tmp_path / "out.mp4")

    assert list(tmp_path.iterdir()) == []


def completed(*artifacts: str) -> dict[str, Any]:
    return {"id": "j", "status": "completed", "artifacts": [{"name": name} for name in artifacts]}


@pytest.mark.parametrize(
    ("out", "made", "beside"),
    [
        ("clip.mp4", ["preview.png", "video.mp4", "contact_sheet.png"], {"clip.png": "contact_sheet.png"}),
        ("picture.png", ["image.png"], {}),
        (
            "clip.mp4",
            ["image.png", "video.mp4", "contact_sheet.png"],
            {"clip.png": "image.png", "clip.contact_sheet.png": "contact_sheet.png"},
        ),
    ],
)
async def test_what_was_made_is_written_where_it_was_asked_for(
    tmp_path: Path, out: str, made: list[str], beside: dict[str, str]
) -> None:
    place = tmp_path / "new"
    async with server(lambda request: httpx.Response(200, content=request.url.path.encode())) as remote:
        written = await _save(remote, completed(*made), place / out)

    assert written == [place / out, *(place / name for name in beside)]
    for name, artifact in beside.items():
        assert (place / name).read_text() == f"/v1/jobs/j/artifacts/{artifact}"
    assert {path.name for path in place.iterdir()} == {out, *beside}


async def test_a_place_that_cannot_be_written_keeps_the_job(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with server(lambda request: httpx.Response(200, content=b"clip")) as remote:
        with pytest.raises(OpsError, match="the clip is kept as job j"):
            await _save(remote, completed("video.mp4"), tmp_path / "file" / "clip.mp4")


# -- whereabouts ------------------------------------------------------------------------------------------------


def test_an_engine_is_announced_for_as_long_as_it_is_up(tmp_path: Path) -> None:
    here = Whereabouts(os.getpid(), "http://127.0.0.1:1", "s")
    with announced(tmp_path, here):
        written = json.loads((tmp_path / "engine.json").read_text())

    assert written == {"pid": os.getpid(), "url": "http://127.0.0.1:1", "store": "s"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "left_behind",
    [
        None,
        b"",
        b"[]",
        b'{"pid": 1, "url": "http://127.0.0.1:1", "store": "STORE"}',
        b'{"pid": 1, "url": "http://[", "store": "STORE"}',
        b'{"pid": 99999999, "url": "http://127.0.0.1:1", "store": "STORE"}',
    ],
)
def test_what_a_crash_left_behind_is_no_engine(tmp_path: Path, left_behind: bytes | None) -> None:
    settings = Settings(data=tmp_path)
    if left_behind is not None:
        (tmp_path / "engine.json").write_bytes(left_behind.replace(b"STORE", settings.store_name.encode()))

    assert running_engine(settings) is None


@pytest.mark.parametrize("name", ["plain", "a?b", "a%20b", "ä b"])
def test_a_folder_of_any_name_has_its_store_in_it(tmp_path: Path, name: str) -> None:
    settings = Settings(data=tmp_path / name)

    assert settings.store_file == tmp_path / name / "keyframe.db"
    assert make_url(settings.store_url).database == str(tmp_path / name / "keyframe.db")


def test_one_store_has_one_name_by_whatever_link_it_is_reached(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    plain, linked = Settings(data=tmp_path / "data"), Settings(data=tmp_path / "link")
    by_url = Settings(data=tmp_path / "elsewhere", store=plain.store_url)

    assert plain.store_name == linked.store_name == by_url.store_name
    assert tmp_path / "data" in by_url.folders
