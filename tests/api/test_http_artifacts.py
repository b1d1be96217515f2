"""Artifacts over HTTP: bytes whole and in part, and callers that have them already."""

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api import ranges
from api.errors import RangeUnsatisfiable
from cards import codec
from tests.sim import Running, request


@pytest.fixture
async def url(running: Running) -> str:
    """A finished job's artifact."""
    job = (await running.client.submit(request())).id
    await running.ended(job)
    return f"/v1/jobs/{job}/artifacts/result.txt"


async def test_an_artifact_is_its_bytes_under_its_digest(http: httpx.AsyncClient, url: str) -> None:
    answer = await http.get(url)

    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.headers["etag"] == f'"{codec.digest(answer.content)}"'
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["content-disposition"] == "inline; filename*=utf-8''result.txt"
    assert int(answer.headers["content-length"]) == len(answer.content) > 0


async def test_head_tells_the_same_without_the_bytes(http: httpx.AsyncClient, url: str) -> None:
    whole = await http.get(url)

    answer = await http.head(url, headers={"range": "bytes=0-3"})

    assert (answer.status_code, answer.content) == (200, b"")
    for name in ("content-length", "content-type", "etag", "accept-ranges"):
        assert answer.headers[name] == whole.headers[name]


@pytest.mark.parametrize("theirs", ["{tag}", "W/{tag}", '"other", {tag}', "*"])
async def test_who_has_the_bytes_gets_none(http: httpx.AsyncClient, url: str, theirs: str) -> None:
    tag = (await http.get(url)).headers["etag"]

    answer = await http.get(url, headers={"if-none-match": theirs.format(tag=tag)})

    assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)


@pytest.mark.parametrize("theirs", ['"other"', "W/", "", "{digest}"])
async def test_who_has_other_bytes_gets_all(http: httpx.AsyncClient, url: str, theirs: str) -> None:
    digest = (await http.get(url)).headers["etag"].strip('"')

    answer = await http.get(url, headers={"if-none-match": theirs.format(digest=digest)})

    assert answer.status_code == 200


async def test_a_range_is_a_part(http: httpx.AsyncClient, url: str) -> None:
    whole = (await http.get(url)).content

    answer = await http.get(url, headers={"range": "bytes=2-5"})

    assert (answer.status_code, answer.content) == (206, whole[2:6])
    assert answer.headers["content-range"] == f"bytes 2-5/{len(whole)}"
    assert answer.headers["content-length"] == "4"


async def test_a_range_behind_the_end_says_where_that_is(http: httpx.AsyncClient, url: str) -> None:
    size = len((await http.get(url)).content)

    answer = await http.get(url, headers={"range": f"bytes={size}-"})

    assert answer.status_code == 416
    assert answer.headers["content-range"] == f"bytes */{size}"
    assert answer.json()["error"]["param"] == "Range"


@pytest.mark.parametrize(("if_range", "status"), [("{tag}", 206), ("W/{tag}", 200), ('"other"', 200), ("", 200)])
async def test_a_part_of_other_bytes_is_of_no_use(
    http: httpx.AsyncClient, url: str, if_range: str, status: int
) -> None:
    tag = (await http.get(url)).headers["etag"]

    answer = await http.get(url, headers={"range": "bytes=0-1", "if-range": if_range.format(tag=tag)})

    assert answer.status_code == status


async def test_an_artifact_that_is_not_there_names_those_that_are(http: httpx.AsyncClient, url: str) -> None:
    answer = await http.get(url.replace("result.txt", "clip.mp4"))

    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "artifact_not_found"
    assert "result.txt" in answer.json()["error"]["message"]


# -- ranges.wanted against slices ------------------------------------------------------------------------------------


@given(data=st.binary(max_size=40), first=st.integers(0, 50), length=st.none() | st.integers(1, 50))
def test_a_range_from_a_place_is_a_slice(data: bytes, first: int, length: int | None) -> None:
    last = "" if length is None else str(first + length - 1)
    stop = None if length is None else first + length

    try:
        part = ranges.wanted(f"bytes={first}-{last}", None, "tag", len(data))
    except RangeUnsatisfiable:
        assert first >= len(data)
    else:
        assert part is not None
        assert data[part.start : part.stop] == data[first:stop]
        assert len(part) > 0


@given(data=st.binary(max_size=40), length=st.integers(0, 50))
def test_a_range_at_the_end_is_a_slice(data: bytes, length: int) -> None:
    try:
        part = ranges.wanted(f"bytes=-{length}", None, "tag", len(data))
    except RangeUnsatisfiable:
        assert length == 0 or not data
    else:
        assert part is not None
        assert data[part.start : part.stop] == data[-length:]


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "bytes",
        "bytes=",
        "bytes=-",
        "bytes=5-2",
        "bytes=a-b",
        "bytes=0-1,3-4",
        "lines=0-1",
        "bytes=²-",
        "-1-2",
    ],
)
def test_what_is_not_one_range_of_bytes_is_ignored(header: str | None) -> None:
    assert ranges.wanted(header, None, "tag", 10) is None


@given(header=st.text(max_size=12) | st.from_regex(r"bytes=[0-9]{0,25}-[0-9]{0,25}"), nbytes=st.integers(0, 20))
def test_no_header_gives_bytes_that_are_not_there(header: str, nbytes: int) -> None:
    try:
        part = ranges.wanted(header, None, "tag", nbytes)
    except RangeUnsatisfiable:
        return
    assert part is None or 0 <= part.start < part.stop <= nbytes
