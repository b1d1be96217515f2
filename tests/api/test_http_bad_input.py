"""What a caller may get wrong: a 4xx that names the field, and no job."""

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.api.serving import app_of, without_sockets
from tests.sim import Running

JSON = {"content-type": "application/json"}


def job(**fields: Any) -> dict[str, Any]:
    return {"model": "toy", "prompt": "a count"} | fields


def careless(value: Any) -> bytes:
    """JSON as Python writes it: with NaN, Infinity and lone surrogates."""
    return json.dumps(value).encode()


def raw(fields: str) -> bytes:
    return ('{"model":"toy","prompt":"a count",' + fields + "}").encode()


BODIES: dict[str, tuple[Any, int, str | None]] = {
    "unknown model": (job(model="nope"), 404, "model"),
    "model with NUL": (job(model="a\0"), 404, "model"),
    "huge model name": (job(model="m" * 100_000), 404, "model"),
    "no model": ({"prompt": "x"}, 400, "model"),
    "no prompt": ({"model": "toy"}, 400, "prompt"),
    "null prompt": (job(prompt=None), 400, "prompt"),
    "empty prompt": (job(prompt=""), 422, "prompt"),
    "continues nothing": (job(continues="nobody"), 422, "continues"),
    "continues a NUL": (job(continues="a\0b"), 400, "continues"),
    "blank prompt": (job(prompt=" \n\t"), 422, "prompt"),
    "100 kB prompt": (job(prompt="a" * 100_000), 422, "prompt"),
    "NUL in the prompt": (job(prompt="a\0b"), 422, "prompt"),
    "100 kB negative prompt": (job(negative_prompt="a" * 100_000), 422, "negative_prompt"),
    "unknown field": (job(stepz=4), 400, "stepz"),
    "huge unknown field": (job(**{"z" * 100_000: 4}), 400, "z" * 600 + "…"),
    "steps below": (job(steps=0), 422, "steps"),
    "steps above": (job(steps=20_001), 422, "steps"),
    "negative steps": (job(steps=-3), 422, "steps"),
    "steps as text": (job(steps="4"), 400, "steps"),
    "steps as fraction": (job(steps=1.5), 400, "steps"),
    "steps as bool": (job(steps=True), 400, "steps"),
    "steps as list": (job(steps=[4]), 400, "steps"),
    "steps of 400 digits": (raw(f'"steps":{"9" * 400}'), 400, "steps"),
    "steps of 5000 digits": (raw(f'"steps":{"9" * 5000}'), 400, "steps"),
    "preview_every of 400 digits": (raw(f'"preview_every":{"9" * 400}'), 400, "preview_every"),
    "negative preview_every": (job(preview_every=-1), 422, "preview_every"),
    "NaN guidance": (raw('"guidance":NaN'), 400, None),
    "infinite guidance": (raw('"guidance":Infinity'), 400, None),
    "guidance of 1e999": (raw('"guidance":1e999'), 400, "guidance"),
    "guidance of 400 digits": (raw(f'"guidance":{"9" * 400}'), 400, "guidance"),
    "guidance above": (job(guidance=11), 422, "guidance"),
    "negative guidance": (job(guidance=-0.5), 422, "guidance"),
    "guidance as text": (job(guidance="high"), 400, "guidance"),
    "negative seed": (job(seed=-1), 422, "seed"),
    "seed beyond 63 bits": (job(seed=2**63), 400, "seed"),
    "seed as text": (job(seed="7"), 400, "seed"),
    "priority above": (job(priority=101), 422, "priority"),
    "a long tenant": (job(tenant="t" * 65), 400, "tenant"),
    "tenant with NUL": (job(tenant="a\0b"), 400, "tenant"),
    "tenant as number": (job(tenant=7), 400, "tenant"),
    "deadline at once": (job(deadline_s=0), 422, "deadline_s"),
    "deadline before": (job(deadline_s=-1), 422, "deadline_s"),
    "deadline in a year": (job(deadline_s=365 * 86_400), 422, "deadline_s"),
    "deadline as text": (job(deadline_s="soon"), 400, "deadline_s"),
    "metadata of numbers": (job(metadata={"a": 1}), 400, "metadata"),
    "nested metadata": (job(metadata={"a": {"b": "c"}}), 400, "metadata"),
    "metadata with a long value": (job(metadata={"a": "b" * 513}), 422, "metadata"),
    "metadata with many keys": (job(metadata={str(n): "" for n in range(17)}), 422, "metadata"),
    "an array": ([job()], 400, None),
    "a number": (7, 400, None),
    "null": (None, 400, None),
    "cut off": (b'{"model":"toy",', 400, None),
    "two values": (b'{"model":"toy","prompt":"x"} {}', 400, None),
    "single quotes": (b"{'model': 'toy'}", 400, None),
    "not UTF-8": (b'{"model":"toy","prompt":"\xff"}', 400, None),
    "lone surrogate": (b'{"model":"toy","prompt":"\\ud800"}', 400, None),
    "lone surrogate key": (raw('"metadata":{"\\udfff":"x"}'), 400, None),
    "byte order mark": (b"\xef\xbb\xbf{}", 400, None),
    "deep nesting": (b"[" * 100_000, 400, None),
    "deep nesting in a field": (raw('"metadata":' + '{"a":' * 30_000), 400, "metadata"),
    "empty": (b"", 400, None),
    "only spaces": (b" \n ", 400, None),
}


@pytest.mark.parametrize(("body", "status", "param"), BODIES.values(), ids=BODIES.keys())
async def test_a_bad_body_is_refused_by_name_and_makes_no_job(
    idle: Running, http_idle: httpx.AsyncClient, body: Any, status: int, param: str | None
) -> None:
    answer = await http_idle.post("/v1/jobs", content=body if isinstance(body, bytes) else careless(body), headers=JSON)

    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param)
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert len(error["message"]) < 1000
    assert await idle.client.jobs() == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"model":"toy","prompt":"x","guidance":NaN}', ["malformed", "byte 39"]),
        (b'{"model":"toy","prompt":"\xff"}', ["UTF-8", "byte 25"]),
        (b'{"model":', ["truncated", "byte 9"]),
        (b"", ["empty", "prompt"]),
        (b'{"model":"toy","prompt":"x","stepz":1}', ["stepz", "steps"]),
        (b'{"model":"toy","prompt":"x","steps":50000}', ["steps", "20000"]),
        (b'{"model":"nope","prompt":"x"}', ["nope", "toy"]),
    ],
)
async def test_the_message_says_where_and_what_would_be_right(
    http_idle: httpx.AsyncClient, body: bytes, words: list[str]
) -> None:
    message = (await http_idle.post("/v1/jobs", content=body, headers=JSON)).json()["error"]["message"]

    assert [word for word in words if word not in message] == [], message


@pytest.mark.parametrize("media_type", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_a_body_that_is_not_json_is_told_what_to_be(
    idle: Running, http_idle: httpx.AsyncClient, media_type: str | None
) -> None:
    headers = {"content-type": media_type} if media_type else {}

    answer = await http_idle.post("/v1/jobs", content=b'{"model":"toy","prompt":"x"}', headers=headers)

    assert (answer.status_code, answer.json()["error"]["param"]) == (415, "Content-Type")
    assert "application/json" in answer.json()["error"]["message"]
    assert await idle.client.jobs() == []


async def test_json_with_a_charset_and_a_key_twice_is_fine(http_idle: httpx.AsyncClient) -> None:
    answer = await http_idle.post(
        "/v1/jobs",
        content=b'{"model":"toy","prompt":"one","prompt":"two"}',
        headers={"content-type": "Application/JSON; charset=utf-8"},
    )

    assert (answer.status_code, answer.json()["prompt"]) == (202, "two")


@pytest.mark.parametrize("key", ["", "k" * 256, "é", "a\tb"])
async def test_a_key_that_cannot_be_kept_is_refused(idle: Running, http_idle: httpx.AsyncClient, key: str) -> None:
    headers = {"idempotency-key": key.encode("latin-1")}

    answer = await http_idle.post("/v1/jobs", json=job(), headers=headers)

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Idempotency-Key")
    assert await idle.client.jobs() == []


async def test_a_key_of_the_longest_length_is_taken(http_idle: httpx.AsyncClient) -> None:
    answer = await http_idle.post("/v1/jobs", json=job(), headers={"idempotency-key": "~" * 255})

    assert answer.status_code == 202


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/v1/jobs?limit=-1", "limit"),
        ("/v1/jobs?limit=0", "limit"),
        ("/v1/jobs?limit=1001", "limit"),
        ("/v1/jobs?limit=ten", "limit"),
        ("/v1/jobs?limit=", "limit"),
        (f"/v1/jobs?limit={'9' * 5000}", "limit"),
        ("/v1/jobs?status=done", "status"),
        ("/v1/jobs?status=", "status"),
        ("/v1/jobs?after=nope", "after"),
        ("/v1/jobs?after=%00", "after"),
        ("/v1/jobs?model=%00", "model"),
        ("/v1/jobs?page=2", "page"),
        ("/v1/jobs/{job}/events?after=-1", "after"),
        ("/v1/jobs/{job}/events?after=x", "after"),
        (f"/v1/jobs/{{job}}/events?after={2**63}", "after"),
        ("/v1/jobs/{job}/events?limit=0", "limit"),
        ("/v1/jobs/{job}/events?since=4", "since"),
    ],
)
async def test_a_bad_parameter_is_refused_by_name(http_idle: httpx.AsyncClient, path: str, param: str) -> None:
    made = (await http_idle.post("/v1/jobs", json=job())).json()["id"]

    answer = await http_idle.get(path.format(job=made))

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("last", ["abc", "-1", "1.5", "", "²", " 7 x", "9" * 30, "0x10"])
async def test_a_malformed_last_event_id_is_refused_by_name(http_idle: httpx.AsyncClient, last: str) -> None:
    made = (await http_idle.post("/v1/jobs", json=job())).json()["id"]
    headers = {"accept": "text/event-stream", "last-event-id": last.encode("latin-1")}

    answer = await http_idle.get(f"/v1/jobs/{made}/events", headers=headers)

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Last-Event-ID")


@pytest.mark.parametrize("path", ["", "/events", "/checkpoints", "/artifacts/result.txt"])
@pytest.mark.parametrize("unknown", ["nope", "%00", "x" * 500, "%F0%9F%8E%AC", "..%2f..%2fetc"])
async def test_an_unknown_job_is_not_found(http_idle: httpx.AsyncClient, path: str, unknown: str) -> None:
    answer = await http_idle.get(f"/v1/jobs/{unknown}{path}")

    assert answer.status_code == 404
    assert answer.json()["error"]["code"] in ("job_not_found", "not_found")


async def test_an_unknown_job_cannot_be_watched_or_cancelled(http_idle: httpx.AsyncClient) -> None:
    watched = await http_idle.get("/v1/jobs/nope/events", headers={"accept": "text/event-stream"})
    cancelled = await http_idle.post("/v1/jobs/nope/cancel")

    assert (watched.status_code, cancelled.status_code) == (404, 404)


async def test_a_path_that_is_none_is_not_found(http_idle: httpx.AsyncClient) -> None:
    for path in ("/", "/v1", "/v1/jobs/", "/V1/jobs", "/v1/jobs/a/b"):
        answer = await http_idle.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found"), path


async def test_a_method_that_is_none_is_told_those_there_are(http_idle: httpx.AsyncClient) -> None:
    answer = await http_idle.delete("/v1/jobs")

    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD, POST"
    assert answer.json()["error"]["code"] == "method_not_allowed"


# -- anything at all ------------------------------------------------------------------------------------------------

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)
FIELDS = (
    "negative_prompt",
    "seed",
    "steps",
    "guidance",
    "preview_every",
    "priority",
    "metadata",
    "tenant",
    "deadline_s",
)
REQUESTS = st.fixed_dictionaries(
    {"model": st.just("toy") | VALUES, "prompt": st.just("a count") | VALUES},
    optional=dict.fromkeys((*FIELDS, "surprise"), VALUES),
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=60) | (REQUESTS | VALUES).map(careless))
async def test_no_body_is_the_servers_fault(idle: Running, body: bytes) -> None:
    async with without_sockets(app_of(idle)) as http:
        answer = await http.post("/v1/jobs", content=body, headers=JSON)

    assert answer.status_code < 500
    assert answer.status_code == 202 or answer.json()["error"]["message"]


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(("/v1/jobs", "/v1/jobs/x", "/v1/jobs/x/events", "/v1/jobs/x/artifacts/y", "/metrics")),
    name=st.sampled_from(("after", "limit", "status", "model")) | st.text(max_size=8),
    value=st.text(max_size=12) | st.integers().map(str),
    last=st.binary(max_size=8).filter(lambda raw: not set(raw) & set(b"\r\n\0")),
)
async def test_no_query_or_header_is_the_servers_fault(
    idle: Running, path: str, name: str, value: str, last: bytes
) -> None:
    headers = {"last-event-id": last, "range": last, "accept": last, "if-none-match": last}

    async with without_sockets(app_of(idle)) as http:
        answer = await http.get(path, params={name: value.encode("utf-8", "replace")}, headers=headers)

    assert answer.status_code < 500
